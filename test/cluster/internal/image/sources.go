package image

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// AddFile adds a file by a SRC:DST[:MODE] argument. Without MODE, programs get 0755 and other files 0644.
func (i *Image) AddFile(argument string) error {
	parts := strings.Split(argument, ":")
	if len(parts) < 2 || len(parts) > 3 || parts[0] == "" || !strings.HasPrefix(parts[1], "/") {
		return fmt.Errorf("--file %s: want SRC:DST[:MODE] with an absolute DST", argument)
	}
	info, err := os.Stat(parts[0])
	if err != nil {
		return fmt.Errorf("--file %s: %w", argument, err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("--file %s: %s isn't a regular file", argument, parts[0])
	}
	mode := defaultMode(info.Mode())
	if len(parts) == 3 {
		mode, err = strconv.ParseInt(parts[2], 8, 32)
		if err != nil || mode&^0o7777 != 0 {
			return fmt.Errorf("--file %s: %q isn't an octal mode", argument, parts[2])
		}
	}
	content, err := os.ReadFile(parts[0])
	if err != nil {
		return fmt.Errorf("--file %s: %w", argument, err)
	}
	i.File(parts[1], mode, content)
	return nil
}

// AddLibraries adds the shared libraries of unpacked Debian packages, leaving out what only people and converters read.
func (i *Image) AddLibraries(folder string) error {
	found := false
	err := filepath.WalkDir(folder, func(at string, item fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		target, err := filepath.Rel(folder, at)
		if err != nil {
			return err
		}
		if item.IsDir() && (target == "usr/share" || item.Name() == "gconv") {
			return filepath.SkipDir
		}
		switch {
		case item.IsDir():
			return nil
		case item.Type() == fs.ModeSymlink:
			to, err := os.Readlink(at)
			if err != nil {
				return err
			}
			i.Link(target, to)
		case item.Type().IsRegular():
			info, err := item.Info()
			if err != nil {
				return err
			}
			content, err := os.ReadFile(at)
			if err != nil {
				return err
			}
			i.File(target, defaultMode(info.Mode()), content)
		}
		found = found || strings.HasPrefix(item.Name(), "libc.so.")
		return nil
	})
	if err != nil {
		return fmt.Errorf("--libs %s: %w", folder, err)
	}
	if !found {
		return fmt.Errorf("--libs %s: there is no libc.so in it; unpack the packages libc6 and libgcc-s1 there", folder)
	}
	// Newer Debian ships everything under /usr and leaves these links to another package.
	for _, name := range []string{"lib", "lib64"} {
		if i.Has("usr/"+name) && !i.Has(name) {
			i.Link(name, "usr/"+name)
		}
	}
	return nil
}

// AddBusybox adds this machine's static busybox and a link for each of its applets.
func (i *Image) AddBusybox() error {
	program, err := exec.LookPath("busybox")
	if err != nil {
		return errors.New("busybox isn't installed; on Debian: apt-get install busybox-static")
	}
	static, err := isStatic(program)
	if err != nil {
		return err
	}
	if !static {
		return fmt.Errorf("%s needs shared libraries; on Debian: apt-get install busybox-static", program)
	}
	list, err := exec.Command(program, "--list-full").Output()
	if err != nil {
		return fmt.Errorf("%s --list-full: %w", program, err)
	}
	content, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	for applet := range strings.FieldsSeq(string(list)) {
		if !i.Has(applet) {
			i.Link(applet, "/bin/busybox")
		}
	}
	i.File("bin/busybox", 0o755, content)
	return nil
}

func isStatic(program string) (bool, error) {
	file, err := elf.Open(program)
	if err != nil {
		return false, fmt.Errorf("%s: %w", program, err)
	}
	defer file.Close()
	return !slices.ContainsFunc(file.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }), nil
}

func defaultMode(mode fs.FileMode) int64 {
	if mode&0o111 != 0 {
		return 0o755
	}
	return 0o644
}
