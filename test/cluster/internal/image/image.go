// Package image writes container images as OCI layout archives, without a container engine.
//
// An image has one uncompressed layer. The same input gives the same bytes, so that an image's digest changes only when
// its content does.
package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"
)

// searchPath is what programs of an image find each other by.
const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Image is what goes into an archive.
type Image struct {
	Ref        string
	Entrypoint []string
	tree       map[string]entry
}

type entry struct {
	mode    int64
	link    string
	folder  bool
	content []byte
}

// New makes an image with the few files that programs expect of any root file system.
func New(ref string, entrypoint ...string) *Image {
	i := &Image{Ref: ref, Entrypoint: entrypoint, tree: map[string]entry{}}
	i.Folder("tmp", 0o1777)
	i.File("etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"))
	i.File("etc/group", 0o644, []byte("root:x:0:\nnogroup:x:65534:\n"))
	return i
}

// File adds a file.
func (i *Image) File(target string, mode int64, content []byte) {
	i.add(target, entry{mode: mode, content: content})
}

// Link adds a symbolic link.
func (i *Image) Link(target, to string) {
	i.add(target, entry{mode: 0o777, link: to})
}

// Folder adds a folder.
func (i *Image) Folder(target string, mode int64) {
	i.add(target, entry{mode: mode, folder: true})
}

// Has says whether the image has a file, folder or link of that name.
func (i *Image) Has(target string) bool {
	_, found := i.tree[clean(target)]
	return found
}

func (i *Image) add(target string, added entry) {
	target = clean(target)
	i.tree[target] = added
	for parent := path.Dir(target); parent != "."; parent = path.Dir(parent) {
		if _, found := i.tree[parent]; !found {
			i.tree[parent] = entry{mode: 0o755, folder: true}
		}
	}
}

func clean(target string) string {
	return strings.TrimPrefix(path.Clean("/"+target), "/")
}

// Write writes the archive.
func (i *Image) Write(out io.Writer) error {
	if len(i.Entrypoint) > 0 && !i.Has(i.Entrypoint[0]) {
		return fmt.Errorf("entrypoint %s isn't in the image %s; add it with --file", i.Entrypoint[0], i.Ref)
	}
	layer, err := i.layer()
	if err != nil {
		return err
	}
	type object = map[string]any
	blobs := map[string][]byte{}
	store := func(mediaType string, content []byte) object {
		digest := digest(content)
		blobs["blobs/sha256/"+digest] = content
		return object{"mediaType": mediaType, "digest": "sha256:" + digest, "size": len(content)}
	}
	storeJSON := func(mediaType string, value any) (object, error) {
		text, err := json.Marshal(value)
		if err != nil {
			return nil, err
		}
		return store(mediaType, text), nil
	}

	layerDescriptor := store("application/vnd.oci.image.layer.v1.tar", layer)
	config, err := storeJSON("application/vnd.oci.image.config.v1+json", object{
		"architecture": runtime.GOARCH,
		"os":           runtime.GOOS,
		"config":       object{"Entrypoint": i.Entrypoint, "Env": []string{"PATH=" + searchPath}},
		"rootfs":       object{"type": "layers", "diff_ids": []any{layerDescriptor["digest"]}},
	})
	if err != nil {
		return err
	}
	const manifestType = "application/vnd.oci.image.manifest.v1+json"
	manifest, err := storeJSON(manifestType, object{
		"schemaVersion": 2,
		"mediaType":     manifestType,
		"config":        config,
		"layers":        []object{layerDescriptor},
	})
	if err != nil {
		return err
	}
	manifest["platform"] = object{"architecture": runtime.GOARCH, "os": runtime.GOOS}
	// containerd takes the image's full name from its own annotation; the OCI one may hold a tag only.
	manifest["annotations"] = object{"io.containerd.image.name": i.Ref}
	index, err := json.Marshal(object{
		"schemaVersion": 2,
		"mediaType":     "application/vnd.oci.image.index.v1+json",
		"manifests":     []object{manifest},
	})
	if err != nil {
		return err
	}
	blobs["index.json"] = index
	blobs["oci-layout"] = []byte(`{"imageLayoutVersion":"1.0.0"}`)

	archive := tar.NewWriter(out)
	for _, name := range slices.Sorted(maps.Keys(blobs)) {
		if err := put(archive, name, entry{mode: 0o644, content: blobs[name]}); err != nil {
			return err
		}
	}
	return archive.Close()
}

func (i *Image) layer() ([]byte, error) {
	var buffer bytes.Buffer
	archive := tar.NewWriter(&buffer)
	for _, name := range slices.Sorted(maps.Keys(i.tree)) {
		if err := put(archive, name, i.tree[name]); err != nil {
			return nil, err
		}
	}
	err := archive.Close()
	return buffer.Bytes(), err
}

func put(archive *tar.Writer, name string, e entry) error {
	header := &tar.Header{Name: name, Mode: e.mode, ModTime: time.Unix(0, 0), Typeflag: tar.TypeReg, Size: int64(len(e.content))}
	switch {
	case e.folder:
		header.Name += "/"
		header.Typeflag = tar.TypeDir
	case e.link != "":
		header.Typeflag = tar.TypeSymlink
		header.Linkname = e.link
	}
	if err := archive.WriteHeader(header); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	_, err := archive.Write(e.content)
	return err
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}
