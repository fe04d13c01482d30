package embedded

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
)

// build is a ready-made PostgreSQL of the Maven group io.zonky.test.postgres.
type build struct {
	version string
	sums    map[string]string // platform to SHA-256 of the jar
}

// pinned are the builds that may be fetched; the first serves new clusters. When a
// new major version takes that place the old one stays in the list: there are
// clusters that only it can read.
var pinned = []build{{
	version: "18.6.0",
	sums: map[string]string{
		"linux-amd64":    "008ee189eaa7ca2b58bd01dd950291e638b998392cf982297acd4779ec898ac1",
		"linux-arm64v8":  "5f54e016723afa6213925a8acb939bac52944b1d348f65c7a20f0cd2928c31be",
		"darwin-amd64":   "690941008aac9ee360820fde9bb7870a4f3dcac5e9e2f9e45e42333a436ad0f9",
		"darwin-arm64v8": "8f6ed6f38195b50a40712ada8b2a12060b6193c1a6977a6eb5cff053bb5a1b89",
	},
}}

func (b build) major() int {
	major, _, _ := strings.Cut(b.version, ".")
	n, _ := strconv.Atoi(major) // a constant of this file
	return n
}

// platform is the machine's name in that group.
func platform() string {
	arch := runtime.GOARCH
	if arch == "arm64" {
		arch = "arm64v8"
	}
	return runtime.GOOS + "-" + arch
}

func (b build) folder() string { return b.version + "-" + platform() }

func (b build) url(base string) string {
	artifact := "embedded-postgres-binaries-" + platform()
	return fmt.Sprintf("%s/io/zonky/test/postgres/%s/%s/%s-%s.jar", strings.TrimRight(base, "/"), artifact, b.version, artifact, b.version)
}
