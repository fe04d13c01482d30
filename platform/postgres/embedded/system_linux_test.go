package embedded

import (
	"fmt"
	"syscall"
)

const stopsWithParent = true

func mountSmall(dir string, bytes int) error {
	return syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0755", bytes))
}

func unmount(dir string) error { return syscall.Unmount(dir, 0) }
