package main

import (
	"reflect"
	"testing"
)

func TestMountsBelowAFolder(t *testing.T) {
	const mountinfo = `22 1 254:0 / / rw - ext4 /dev/vda rw
30 22 0:1 / /var/tmp/aliquot/dev/node-0/lib rw - tmpfs tmpfs rw
31 30 0:2 / /var/tmp/aliquot/dev/node-0/lib/with\040blank rw - tmpfs tmpfs rw
32 22 0:3 / /var/tmp/aliquot/dev2/x rw - tmpfs tmpfs rw
33 22 0:4 / /var/tmp/aliquot/dev rw - tmpfs tmpfs rw
`
	got := mountsBelow(mountinfo, "/var/tmp/aliquot/dev")
	want := []string{"/var/tmp/aliquot/dev/node-0/lib", "/var/tmp/aliquot/dev/node-0/lib/with blank"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}
