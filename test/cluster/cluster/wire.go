package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
)

// An init is talked to over a socket that keeps messages apart: one request, with the standard files of a program that is
// to be run in the member, and one reply. When the caller goes away, the program is killed.
const wire = "unixpacket"

const maxMessage = 128 << 10

type request struct {
	// One of these is set.
	Status  bool     `json:",omitempty"`
	Restart string   `json:",omitempty"`
	Exec    []string `json:",omitempty"`
}

type reply struct {
	Error      string           `json:",omitempty"`
	Components []componentState `json:",omitempty"`
	ExitCode   int              `json:",omitempty"`
}

// serve answers requests from now on.
func serve(path string, s *supervisor) error {
	// A previous boot's.
	if err := os.RemoveAll(path); err != nil {
		return err
	}
	listener, err := net.ListenUnix(wire, &net.UnixAddr{Name: path, Net: wire})
	if err != nil {
		return err
	}
	go func() {
		for {
			connection, err := listener.AcceptUnix()
			if err != nil {
				fmt.Printf("control socket: %v\n", err)
				return
			}
			go answer(connection, s)
		}
	}()
	return nil
}

func answer(connection *net.UnixConn, s *supervisor) {
	defer connection.Close()
	asked, files, err := receive(connection)
	var answered reply
	if err == nil {
		answered, err = handle(connection, s, asked, files)
	}
	for _, file := range files {
		file.Close()
	}
	if err != nil {
		answered.Error = err.Error()
	}
	text, err := json.Marshal(answered)
	if err == nil {
		_, err = connection.Write(text)
	}
	if err != nil && !errors.Is(err, syscall.EPIPE) {
		fmt.Printf("control socket: %v\n", err)
	}
}

func receive(connection *net.UnixConn) (request, []*os.File, error) {
	var asked request
	message := make([]byte, maxMessage)
	rights := make([]byte, syscall.CmsgSpace(3*4))
	n, rightsN, _, _, err := connection.ReadMsgUnix(message, rights)
	if err != nil {
		return asked, nil, err
	}
	var files []*os.File
	parsed, err := syscall.ParseSocketControlMessage(rights[:rightsN])
	if err != nil {
		return asked, nil, err
	}
	for _, one := range parsed {
		fds, err := syscall.ParseUnixRights(&one)
		if err != nil {
			return asked, files, err
		}
		for _, fd := range fds {
			syscall.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "caller's"))
		}
	}
	return asked, files, json.Unmarshal(message[:n], &asked)
}

func handle(connection *net.UnixConn, s *supervisor, asked request, files []*os.File) (reply, error) {
	ctx := context.Background()
	switch {
	case asked.Status:
		return reply{Components: s.states(ctx)}, nil
	case asked.Restart != "":
		return reply{}, s.restart(ctx, asked.Restart)
	case len(asked.Exec) > 0 && len(files) == 3:
		return runFor(connection, s.children, asked.Exec, files)
	default:
		return reply{}, errors.New("this member's init doesn't know the request; it is of another version of cluster")
	}
}

func runFor(connection *net.UnixConn, children *children, args []string, files []*os.File) (reply, error) {
	pid, ended, err := children.spawn(args, os.Environ(), files)
	if err != nil {
		return reply{}, err
	}
	gone := make(chan struct{})
	go func() {
		// The caller sends nothing more, so this returns when it is gone.
		_, _ = connection.Read(make([]byte, 1))
		close(gone)
	}()
	select {
	case status := <-ended:
		return reply{ExitCode: exitCode(status)}, nil
	case <-gone:
		_ = syscall.Kill(-pid, syscall.SIGKILL)
		<-ended
		return reply{}, nil
	}
}

// ask sends a request to a member's init.
func (c *cluster) ask(ctx context.Context, member string, asked request, files ...*os.File) (reply, error) {
	var answered reply
	folder, err := openPath(c.memberConfig(member))
	if err != nil {
		return answered, err
	}
	defer folder.Close()
	// The path proper may be longer than a socket's can be.
	path := filepath.Join(fmt.Sprintf("/proc/self/fd/%d", folder.Fd()), socketName)
	connection, err := net.DialUnix(wire, nil, &net.UnixAddr{Name: path, Net: wire})
	if err != nil {
		return answered, fmt.Errorf("%s doesn't answer: %w", member, errors.Unwrap(err))
	}
	defer connection.Close()
	stop := context.AfterFunc(ctx, func() { connection.Close() })
	defer stop()

	text, err := json.Marshal(asked)
	if err != nil {
		return answered, err
	}
	var rights []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, file := range files {
			fds[i] = int(file.Fd())
		}
		rights = syscall.UnixRights(fds...)
	}
	if _, _, err := connection.WriteMsgUnix(text, rights, nil); err != nil {
		return answered, fmt.Errorf("%s: %w", member, err)
	}
	message := make([]byte, maxMessage)
	n, err := connection.Read(message)
	if ctx.Err() != nil {
		return answered, ctx.Err()
	}
	if err != nil {
		return answered, fmt.Errorf("%s went away: %w", member, err)
	}
	if err := json.Unmarshal(message[:n], &answered); err != nil {
		return answered, fmt.Errorf("%s: %w", member, err)
	}
	if answered.Error != "" {
		return answered, fmt.Errorf("%s: %s", member, answered.Error)
	}
	return answered, nil
}
