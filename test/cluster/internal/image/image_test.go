package image

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

type descriptor struct {
	Digest      string
	Size        int
	Annotations map[string]string
}

func read(t *testing.T, archive []byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	reader := tar.NewReader(bytes.NewReader(archive))
	for {
		header, err := reader.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.ModTime.Unix() != 0 || header.Uid != 0 || header.Gid != 0 {
			t.Errorf("%s has time %v, owner %d:%d", header.Name, header.ModTime, header.Uid, header.Gid)
		}
		content, err := io.ReadAll(reader)
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name+header.Linkname] = content
	}
}

func write(t *testing.T, i *Image) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := i.Write(&out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestArchiveIsAnOCILayout(t *testing.T) {
	i := New("aliquot.local/test:1", "/bin/prog")
	i.File("/bin/prog", 0o755, []byte("program"))
	i.Link("bin/other", "prog")
	files := read(t, write(t, i))

	blob := func(d descriptor) []byte {
		t.Helper()
		hash := strings.TrimPrefix(d.Digest, "sha256:")
		content, found := files["blobs/sha256/"+hash]
		if !found || digest(content) != hash || len(content) != d.Size {
			t.Fatalf("blob %s: found %v, %d bytes for %d", d.Digest, found, len(content), d.Size)
		}
		return content
	}
	parse := func(text []byte, into any) {
		t.Helper()
		if err := json.Unmarshal(text, into); err != nil {
			t.Fatal(err)
		}
	}

	var layout struct{ ImageLayoutVersion string }
	parse(files["oci-layout"], &layout)
	if layout.ImageLayoutVersion != "1.0.0" {
		t.Errorf("layout version is %q", layout.ImageLayoutVersion)
	}
	var index struct{ Manifests []descriptor }
	parse(files["index.json"], &index)
	if got := index.Manifests[0].Annotations["io.containerd.image.name"]; got != "aliquot.local/test:1" {
		t.Errorf("name is %q", got)
	}
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	parse(blob(index.Manifests[0]), &manifest)
	var config struct {
		Config struct{ Entrypoint []string }
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	parse(blob(manifest.Config), &config)
	if !reflect.DeepEqual(config.Config.Entrypoint, []string{"/bin/prog"}) {
		t.Errorf("entrypoint is %v", config.Config.Entrypoint)
	}
	if !reflect.DeepEqual(config.RootFS.DiffIDs, []string{manifest.Layers[0].Digest}) {
		t.Errorf("layers are %v", config.RootFS.DiffIDs)
	}
	layer := read(t, blob(manifest.Layers[0]))
	if string(layer["bin/prog"]) != "program" {
		t.Error("the program isn't in the layer")
	}
	for _, name := range []string{"bin/", "bin/otherprog", "tmp/", "etc/passwd"} {
		if _, found := layer[name]; !found {
			t.Errorf("%s isn't in the layer", name)
		}
	}
}

func TestSameInputGivesTheSameBytes(t *testing.T) {
	build := func(names ...string) []byte {
		i := New("aliquot.local/test:1")
		for _, name := range names {
			i.File(name, 0o644, []byte(name))
		}
		return write(t, i)
	}
	if !bytes.Equal(build("a/b", "c"), build("c", "a/b")) {
		t.Error("the order of the files shows in the archive")
	}
	if bytes.Equal(build("a"), build("b")) {
		t.Error("other files give the same archive")
	}
}

func TestFileArguments(t *testing.T) {
	folder := t.TempDir()
	program := filepath.Join(folder, "prog")
	if err := os.WriteFile(program, []byte("x"), 0o700); err != nil {
		t.Fatal(err)
	}
	i := New("test")
	for _, good := range []string{program + ":/bin/prog", program + ":/etc/plain:0600"} {
		if err := i.AddFile(good); err != nil {
			t.Error(err)
		}
	}
	if got := i.tree["bin/prog"].mode; got != 0o755 {
		t.Errorf("mode of a program is %o", got)
	}
	if got := i.tree["etc/plain"].mode; got != 0o600 {
		t.Errorf("mode is %o instead of 600", got)
	}
	for _, bad := range []string{
		program, program + ":bin/prog", ":/bin/prog", program + ":/bin/prog:rwx", program + ":/p:0755:more",
		folder + ":/bin", filepath.Join(folder, "absent") + ":/bin/absent",
	} {
		if err := i.AddFile(bad); err == nil || !strings.Contains(err.Error(), bad) {
			t.Errorf("%q gives %v", bad, err)
		}
	}
}

func TestLibrariesWithoutWhatNobodyLoads(t *testing.T) {
	folder := t.TempDir()
	for _, name := range []string{
		"usr/lib/x86_64-linux-gnu/libc.so.6", "usr/lib64/ld-linux-x86-64.so.2",
		"usr/lib/x86_64-linux-gnu/gconv/UTF-16.so", "usr/share/doc/libc6/copyright",
	} {
		if err := os.MkdirAll(filepath.Join(folder, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	i := New("test")
	if err := i.AddLibraries(folder); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{
		"usr/lib/x86_64-linux-gnu/libc.so.6": true, "lib": true, "lib64": true,
		"usr/lib/x86_64-linux-gnu/gconv": false, "usr/share": false,
	} {
		if i.Has(name) != want {
			t.Errorf("%s: in the image is %v", name, !want)
		}
	}
	if err := i.AddLibraries(t.TempDir()); err == nil {
		t.Error("a folder without libc is accepted")
	}
}

func TestEntrypointMustBeInTheImage(t *testing.T) {
	if err := New("test", "/bin/absent").Write(io.Discard); err == nil {
		t.Error("an entrypoint that isn't in the image is accepted")
	}
}
