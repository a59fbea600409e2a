package cgroup

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

const v1 = `22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
28 23 0:26 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
29 28 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
30 28 0:28 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
31 28 0:29 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
`

const v2 = `22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
29 23 0:27 / /sys/fs/cgroup rw,nosuid shared:9 master:2 - cgroup2 cgroup2 rw,nsdelegate
40 23 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate
`

func TestHierarchiesAreFound(t *testing.T) {
	tests := []struct {
		name, mountinfo string
		want            []Hierarchy
		unifiedOnly     bool
	}{
		{"v1 with an empty v2 beside it", v1, []Hierarchy{
			{Mount: "/sys/fs/cgroup/cpu,cpuacct", Controllers: []string{"cpu", "cpuacct"}},
			{Mount: "/sys/fs/cgroup/systemd", Controllers: []string{"name=systemd"}},
			{Mount: "/sys/fs/cgroup/unified", V2: true},
		}, false},
		{"v2 only, mounted over itself", v2, []Hierarchy{{Mount: "/sys/fs/cgroup", V2: true}}, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := parse(strings.NewReader(test.mountinfo))
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, test.want) {
				t.Errorf("found %+v, want %+v", got, test.want)
			}
			if UnifiedOnly(got) != test.unifiedOnly {
				t.Errorf("unified only is %v", !test.unifiedOnly)
			}
		})
	}
}

// A plain folder behaves enough like a hierarchy: files appear where the kernel would show them.
func TestGroupIsMadeFilledAndRemoved(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		if err := os.WriteFile(filepath.Join(root, name), []byte("0-1\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	hierarchies := []Hierarchy{{Mount: root, Controllers: []string{"cpuset"}}}
	if err := Make(hierarchies, "/aliquot/dev/node-0"); err != nil {
		t.Fatal(err)
	}
	// Twice, because a node that is started again finds its group.
	if err := Make(hierarchies, "/aliquot/dev/node-0"); err != nil {
		t.Fatal(err)
	}
	cpus, err := os.ReadFile(filepath.Join(root, "aliquot/dev/node-0/cpuset.cpus"))
	if err != nil || string(cpus) != "0-1\n" {
		t.Errorf("cpuset.cpus is %q (%v)", cpus, err)
	}

	if err := os.WriteFile(filepath.Join(root, "aliquot/dev/cgroup.procs"), []byte("7\n5\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "aliquot/dev/node-0/cgroup.procs"), []byte("5\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	pids, err := Processes(hierarchies, "/aliquot/dev")
	if err != nil || !reflect.DeepEqual(pids, []int{5, 7}) {
		t.Errorf("processes are %v (%v)", pids, err)
	}

	pids, err = Processes(hierarchies, "/aliquot/other")
	if err != nil || len(pids) != 0 {
		t.Errorf("a group that isn't there has processes %v (%v)", pids, err)
	}
}

func TestRemoveTakesEmptyParentsOnly(t *testing.T) {
	root := t.TempDir()
	hierarchies := []Hierarchy{{Mount: root}}
	for _, group := range []string{"/aliquot/dev/node-0/kubepods", "/aliquot/other"} {
		if err := Make(hierarchies, group); err != nil {
			t.Fatal(err)
		}
	}
	if err := Remove(t.Context(), hierarchies, "/aliquot/dev"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "aliquot/other")); err != nil {
		t.Error(err)
	}
	if err := Remove(t.Context(), hierarchies, "/aliquot/other"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "aliquot")); err == nil {
		t.Error("the empty parent is left")
	}
}
