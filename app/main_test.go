package app_test

import (
	"testing"

	"km0/platform/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }
