//go:build !linux

package postgres

import "syscall"

// limitUnacknowledged leaves the system's own limit where TCP_USER_TIMEOUT
// does not exist; keepalive still ends a connection that only waits.
func limitUnacknowledged(string, string, syscall.RawConn) error { return nil }
