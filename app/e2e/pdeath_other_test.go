//go:build !linux

package e2e_test

import "syscall"

func bound(credential *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: credential}
}
