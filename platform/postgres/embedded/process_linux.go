package embedded

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// dieWithParent has the kernel signal the child when the thread that made it ends.
func dieWithParent(attr *syscall.SysProcAttr, sig syscall.Signal) { attr.Pdeathsig = sig }

// lookUp reports a process that runs; false for none and for a zombie.
func lookUp(pid int) (process, bool) {
	// The state stands behind the name, which may hold brackets itself.
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, false
	}
	rest := stat[bytes.LastIndexByte(stat, ')')+1:]
	if len(rest) < 2 || strings.ContainsRune("ZX", rune(rest[1])) {
		return process{}, false
	}
	p := process{pid: pid}
	if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil {
		p.command = strings.TrimSpace(string(bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
	}
	// Refused to root too in a container without CAP_SYS_PTRACE.
	if cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid)); err == nil {
		p.cwd = cwd
	}
	return p, true
}

func processes() []process {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var all []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if p, ok := lookUp(pid); ok {
			all = append(all, p)
		}
	}
	return all
}
