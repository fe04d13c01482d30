//go:build unix && !linux

package embedded

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// dieWithParent cannot be had here: the next start stops what was left.
func dieWithParent(*syscall.SysProcAttr, syscall.Signal) {}

// lookUp reports a process that runs; false for none and for a zombie.
func lookUp(pid int) (process, bool) {
	found := list("-p", strconv.Itoa(pid))
	if len(found) == 0 {
		return process{}, false
	}
	return found[0], true
}

func processes() []process { return list("-A") }

func list(which ...string) []process {
	out, err := exec.Command("ps", append(which, "-ww", "-o", "pid=", "-o", "stat=", "-o", "command=")...).Output()
	if err != nil {
		return nil
	}
	var all []process
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) < 3 || strings.HasPrefix(fields[1], "Z") {
			continue
		}
		if pid, err := strconv.Atoi(fields[0]); err == nil {
			all = append(all, process{pid: pid, command: strings.Join(fields[2:], " ")})
		}
	}
	return all
}
