package e2e_test

import "syscall"

// bound keeps a child from outliving a test process that is itself killed.
func bound(credential *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: credential, Pdeathsig: syscall.SIGKILL}
}
