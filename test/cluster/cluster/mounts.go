package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// A member sees the host's programs, read-only, and has everything else to itself: /run and /dev are empty at boot, and
// what must outlive a reboot comes with the spec's binds.
func setUpMounts(s spec) error {
	// Whatever is mounted from here on stays in the member.
	if err := mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return err
	}
	// The sources may lie below folders that are about to be covered.
	sources := make([]*os.File, len(s.Binds))
	for i, b := range s.Binds {
		file, err := openPath(b.Source)
		if err != nil {
			return err
		}
		defer file.Close()
		sources[i] = file
	}

	if err := mount("proc", "/proc", "proc", syscall.MS_NOSUID|syscall.MS_NODEV|syscall.MS_NOEXEC, ""); err != nil {
		return err
	}
	if err := mount("tmpfs", "/run", "tmpfs", syscall.MS_NOSUID|syscall.MS_NODEV, "mode=755"); err != nil {
		return err
	}
	if err := setUpDevices(); err != nil {
		return err
	}
	for i, b := range s.Binds {
		if err := bindFile(sources[i], b.Target); err != nil {
			return err
		}
	}
	for i, p := range s.Pins {
		if err := pinFile(p, filepath.Join(harnessDir, "pins", fmt.Sprint(i))); err != nil {
			return err
		}
	}
	// The mount of the host's root only: those below it are the member's own or no concern of its programs.
	if err := mount("", "/", "", syscall.MS_REMOUNT|syscall.MS_BIND|syscall.MS_RDONLY, ""); err != nil {
		return err
	}
	// Pods may ask that what they mount is seen by others on the node.
	return mount("", "/", "", syscall.MS_REC|syscall.MS_SHARED, "")
}

func openPath(path string) (*os.File, error) {
	// O_PATH is missing in package syscall.
	const oPath = 0x200000
	fd, err := syscall.Open(path, oPath|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

func bindFile(source *os.File, target string) error {
	info, err := source.Stat()
	if err != nil {
		return err
	}
	if _, err := os.Stat(target); errors.Is(err, fs.ErrNotExist) {
		if err := makeLike(info, target); err != nil {
			return err
		}
	}
	return mount(fmt.Sprintf("/proc/self/fd/%d", source.Fd()), target, "", syscall.MS_BIND, "")
}

func makeLike(info fs.FileInfo, target string) error {
	if info.IsDir() {
		return os.MkdirAll(target, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	return os.WriteFile(target, nil, 0o644)
}

// pinFile covers a file of the kernel that belongs to the whole machine.
func pinFile(p pin, cover string) error {
	if _, err := os.Stat(p.Path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(cover), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(cover, []byte(p.Content), 0o644); err != nil {
		return err
	}
	return mount(cover, p.Path, "", syscall.MS_BIND, "")
}

// setUpDevices makes a /dev with what every machine has. GPUs come with the setup.
func setUpDevices() error {
	if err := mount("tmpfs", "/dev", "tmpfs", syscall.MS_NOSUID, "mode=755"); err != nil {
		return err
	}
	// mknod must give exactly these modes.
	defer syscall.Umask(syscall.Umask(0))
	for _, device := range []struct {
		name         string
		mode         uint32
		major, minor int
	}{
		{"null", 0o666, 1, 3}, {"zero", 0o666, 1, 5}, {"full", 0o666, 1, 7}, {"random", 0o666, 1, 8},
		{"urandom", 0o666, 1, 9}, {"kmsg", 0o644, 1, 11}, {"tty", 0o666, 5, 0},
	} {
		path := "/dev/" + device.name
		// Both numbers are below 256, so that the old layout is the new one.
		if err := syscall.Mknod(path, syscall.S_IFCHR|device.mode, device.major<<8|device.minor); err != nil {
			return &os.PathError{Op: "mknod", Path: path, Err: err}
		}
	}
	for link, to := range map[string]string{
		"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx",
	} {
		if err := os.Symlink(to, "/dev/"+link); err != nil {
			return err
		}
	}
	for _, m := range []struct{ name, kind, options string }{
		{"pts", "devpts", "newinstance,ptmxmode=0666,mode=620,gid=5"},
		{"shm", "tmpfs", "mode=1777"},
		{"mqueue", "mqueue", ""},
	} {
		path := "/dev/" + m.name
		if err := os.Mkdir(path, 0o755); err != nil {
			return err
		}
		if err := mount(m.kind, path, m.kind, syscall.MS_NOSUID|syscall.MS_NOEXEC, m.options); err != nil {
			return err
		}
	}
	return nil
}

func mount(source, target, kind string, flags uintptr, options string) error {
	if err := syscall.Mount(source, target, kind, flags, options); err != nil {
		return fmt.Errorf("mount of %q at %s: %w", source, target, err)
	}
	return nil
}
