// Package embedded promises a PostgreSQL to a program that was given none: it
// finds or fetches the server programs, starts one private cluster below a
// state folder, and loses nothing that the cluster acknowledged, however the
// program ends.
//
// # Who gets in
//
// The server listens on a unix socket only, in a folder of mode 0700 that
// belongs to the account it runs as; there is no port and no password. A
// program that runs as root gives the server to an unprivileged account: the
// owner of the cluster, SUDO_USER, postgres, nobody, in that order.
//
// # What is in the state folder
//
//	lock           held by the one program that uses the folder, with its pid
//	postgres/      the cluster
//	postgres.lock  held by every process of the server, through inheritance
//	postgres.log   what initdb and the server say; postgres.log.1 the one before
//	socket/        the socket, unless its path is too long for the system
//	cache/         fetched server programs, where the user's cache will not do
//
// # Failure model
//
//   - The program is killed: on Linux the kernel asks the server for a fast
//     shutdown; elsewhere the server runs on. The next [Start] asks again, waits,
//     and starts anew. No server is adopted, so there is one way to start.
//   - The server, or all of its processes, are killed: [Server.Done] closes, and
//     the next Start recovers from the write-ahead log.
//   - Killed during initdb: the cluster is made beside its place and renamed when
//     complete; the next Start throws the half away and begins again.
//   - Killed during a download: the same, with the programs.
//   - Who may work on the cluster is decided by locks that the kernel releases
//     with the last process that holds them. Neither a process id in a file, nor
//     a zombie, nor a reused id can block a start.
//   - A second program on the same folder fails at once with [InUseError].
//   - A full disk, a cluster of another major version, a damaged cluster: one
//     error that names the folder and carries the last lines of the log. Nothing
//     that may hold data is ever deleted.
package embedded
