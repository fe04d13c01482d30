//go:build unix && !linux

package embedded

import "errors"

const stopsWithParent = false

func mountSmall(string, int) error { return errors.ErrUnsupported }

func unmount(string) error { return nil }
