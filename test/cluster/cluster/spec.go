package main

// Where a member finds what is its own. The folder is part of its /run and thus made anew at every boot.
const (
	harnessDir  = "/run/test-cluster"
	programsDir = harnessDir + "/bin"
	mockDir     = harnessDir + "/mock"
	configDir   = harnessDir + "/etc"

	// socketName is the init's control socket, in the folder of the member's configuration.
	socketName = "init.sock"
)

// spec is all that a member's init must know. The init waits for it and gives up when whoever started it dies before.
type spec struct {
	Hostname string
	// Cgroup has one child for the member's own programs; kubelet puts pods into another.
	Cgroup string
	// Binds are the files and folders of the outside that the member sees.
	Binds []bind
	// Pins are files of the kernel that read differently in the member.
	Pins []pin
	// Sysctls are the member's own, those of its network.
	Sysctls []pin
	// Setup runs once, before the components; if it fails the member does.
	Setup      [][]string
	Components []component
}

// bind mounts Source over Target, which is made if it lies in one of the member's own file systems.
type bind struct {
	Source, Target string
}

// pin sets the content of a file.
type pin struct {
	Path, Content string
}

// component is a program that runs as long as the member does.
type component struct {
	Name string
	Args []string
	// Wait holds what must be up before it is started.
	Wait []probe
	// Before runs ahead of the first start.
	Before [][]string
	// Ready tells when it does its work.
	Ready probe
}
