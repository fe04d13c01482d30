package postgres

import (
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// limitUnacknowledged gives up a connection whose data nobody acknowledged for
// 15 s; the system's own limit is about 15 minutes.
func limitUnacknowledged(network, _ string, conn syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	var set error
	err := conn.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 15_000)
	})
	if err != nil {
		return err
	}
	return set
}
