// Package postgres gives every module a pool that mends itself, a schema that
// is up to date or refuses to be used, and a word for each kind of failure:
// the database is away (Unavailable), or this attempt collided (Transient).
//
// Failure model. Killed during Migrate: the database is as after the last
// whole file, and the next start goes on from there. Server restarted: calls
// under way fail with an Unavailable error, the next ones get new connections.
// Network silent: a call fails after about 15 s, or when its context ends.
// Client gone in mid-transaction: the server rolls back within 60 s. Schema
// changed under a running process: one Transient error, then new plans.
//
// Connections carry session parameters and named statements, so a connection
// pooler between must work per session, or know both.
package postgres
