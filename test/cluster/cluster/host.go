package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"aliquot.dev/test/cluster/internal/cgroup"
)

// hostPrograms are what the members take from the host, and the Debian packages that have them.
var hostPrograms = []struct{ program, packageName string }{
	{"runc", "runc"},
	{"iptables", "iptables"},
	{"iptables-save", "iptables"},
	{"iptables-restore", "iptables"},
	{"ip", "iproute2"},
	{"nsenter", "util-linux"},
	{"mount", "mount"},
}

func checkRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("needs root, for namespaces, mounts and cgroups; run it with sudo")
	}
	return nil
}

// checkHost finds out what the machine lacks before anything is started.
func checkHost() error {
	if err := checkRoot(); err != nil {
		return err
	}
	var programs, packages []string
	for _, needed := range hostPrograms {
		if _, err := exec.LookPath(needed.program); err != nil {
			programs = append(programs, needed.program)
			packages = append(packages, needed.packageName)
		}
	}
	if len(programs) > 0 {
		return fmt.Errorf("%s not found; on Debian: apt-get install %s",
			strings.Join(programs, ", "), strings.Join(slices.Compact(packages), " "))
	}
	_, err := cgroup.Host()
	return err
}
