package demo

import "syscall"

// dieWithParent keeps a worker from outliving a demonstration that is killed.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
