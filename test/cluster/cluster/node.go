package main

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"aliquot.dev/test/cluster/internal/image"
	"aliquot.dev/test/cluster/internal/pki"
)

const (
	containerdSocket = "/run/containerd/containerd.sock"
	pauseRef         = "aliquot.local/pause:1"
	pauseArchive     = "pause.tar"
	bootIDFile       = "/proc/sys/kernel/random/boot_id"
	driverRoot       = "/run/nvidia/driver"
)

// kubelet sets these on the whole machine where they differ; the machine is not ours.
var kubeletSysctls = []pin{
	{"/proc/sys/vm/overcommit_memory", "1\n"},
	{"/proc/sys/vm/panic_on_oom", "0\n"},
	{"/proc/sys/kernel/panic", "10\n"},
	{"/proc/sys/kernel/panic_on_oops", "1\n"},
	{"/proc/sys/kernel/keys/root_maxkeys", "1000000\n"},
	{"/proc/sys/kernel/keys/root_maxbytes", "25000000\n"},
}

// writeNode writes what a node reads at start.
func (c *cluster) writeNode(r *record, k credentials, i int) error {
	name, folder := nodeName(i), c.memberConfig(nodeName(i))
	client := pki.Identity{Name: "system:node:" + name, Groups: []string{"system:nodes"}}
	if err := k.kubeconfig(filepath.Join(folder, "kubelet.kubeconfig"), c.name, client); err != nil {
		return err
	}
	proxy := pki.Identity{Name: "system:kube-proxy"}
	if err := k.kubeconfig(filepath.Join(folder, "kube-proxy.kubeconfig"), c.name, proxy); err != nil {
		return err
	}
	serving := pki.Identity{Name: name, Hosts: []string{name}, IPs: []net.IP{net.ParseIP(r.Slot.node(i))}}
	if err := k.issue(folder, "kubelet", serving); err != nil {
		return err
	}
	kubelet, err := kubeletConfig(c.memberGroup(name))
	if err != nil {
		return err
	}
	cni, err := cniConfig(r.Slot.pods(i))
	if err != nil {
		return err
	}
	pause, err := pauseImage()
	if err != nil {
		return err
	}
	return writeFiles(folder, map[string][]byte{
		"ca.crt":               k.authority.Certificate(),
		"kubelet.json":         kubelet,
		"containerd.toml":      []byte(containerdConfig(snapshotter(c.dir))),
		"cni/10-pods.conflist": cni,
		pauseArchive:           pause,
	})
}

// nodeSpec is one boot of a node.
func (c *cluster) nodeSpec(r *record, i int, bootID string) spec {
	s, name := *r.Slot, nodeName(i)
	api := apiReady(s, configDir+"/ca.crt")
	containerd := probe{What: "containerd", Socket: containerdSocket}
	made := spec{
		Hostname: name,
		Cgroup:   c.memberGroup(name),
		Binds:    c.binds(r, name),
		Pins:     append([]pin{{bootIDFile, bootID + "\n"}}, kubeletSysctls...),
		Sysctls:  []pin{{"/proc/sys/net/ipv4/ip_forward", "1"}, orphanRetries},
		Components: []component{
			{
				Name:  "containerd",
				Args:  []string{programsDir + "/containerd", "--config", configDir + "/containerd.toml"},
				Ready: containerd,
			},
			{
				Name: "kubelet",
				Args: kube("kubelet",
					"--config="+configDir+"/kubelet.json",
					"--kubeconfig="+configDir+"/kubelet.kubeconfig",
					"--hostname-override="+name,
					"--node-ip="+s.node(i),
					"--v=2"),
				Wait:   []probe{containerd, api},
				Before: [][]string{c.importCommand(configDir + "/" + pauseArchive)},
				Ready:  probe{What: "kubelet", URL: "http://127.0.0.1:10248/healthz"},
			},
			kubeProxy(s, name, api),
		},
	}
	if machine := r.machine(i); machine != "" {
		// It keeps its name, which errors mention.
		machineFile := filepath.Join(harnessDir, "machine", filepath.Base(machine))
		made.Binds = append(made.Binds, bind{machine, machineFile}, bind{r.Mock, mockDir})
		made.Setup = append(made.Setup, []string{
			mockDir + "/" + mockProgram, "layout", machineFile, "--node", name, "--root", driverRoot, "--dev", "/dev",
			"--library", mockDir + "/" + mockLibrary,
		})
	}
	return made
}

func kubeletConfig(group string) ([]byte, error) {
	type object = map[string]any
	return json.MarshalIndent(object{
		"apiVersion": "kubelet.config.k8s.io/v1beta1",
		"kind":       "KubeletConfiguration",
		"authentication": object{
			"anonymous": object{"enabled": false},
			"webhook":   object{"enabled": true},
			"x509":      object{"clientCAFile": configDir + "/ca.crt"},
		},
		"authorization":            object{"mode": "Webhook"},
		"tlsCertFile":              configDir + "/kubelet.crt",
		"tlsPrivateKeyFile":        configDir + "/kubelet.key",
		"containerRuntimeEndpoint": "unix://" + containerdSocket,
		"cgroupDriver":             "cgroupfs",
		"cgroupRoot":               group,
		"failCgroupV1":             false,
		"failSwapOn":               false,
		// The disk is the host's; how full it is, is no concern of the tests.
		"evictionHard": object{
			"memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%",
		},
		"imageGCHighThresholdPercent":   100,
		"localStorageCapacityIsolation": false,
		"volumePluginDir":               "/var/lib/kubelet/volume-plugins",
		"clusterDomain":                 "cluster.local",
		"nodeStatusUpdateFrequency":     "5s",
		"containerLogMaxSize":           "100Mi",
		// Nobody answers there, but without an address every pod gets a warning event.
		"clusterDNS": []string{dnsService},
	}, "", "  ")
}

// containerdConfig is the runtime's. Its folders for plugins and programs would by default lie on the host's root.
func containerdConfig(snapshotter string) string {
	return fmt.Sprintf(`version = 3
root = "/var/lib/containerd"
state = "/run/containerd"

[grpc]
  address = %[1]q

[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"

[plugins."io.containerd.cri.v1.images"]
  snapshotter = %[2]q
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = %[3]q

[plugins."io.containerd.cri.v1.runtime"]
  enable_cdi = true
  cdi_spec_dirs = ["/var/run/cdi"]
  # Where root may not lower the score, runc would fail.
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = [%[4]q]
    conf_dir = "%[5]s/cni"
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        BinaryName = "runc"
        SystemdCgroup = false
`, containerdSocket, snapshotter, pauseRef, programsDir, configDir)
}

// snapshotter avoids stacking overlays, which the kernel refuses, where the state folder itself is on one.
func snapshotter(folder string) string {
	const overlayMagic = 0x794c7630
	var info syscall.Statfs_t
	if err := syscall.Statfs(folder, &info); err == nil && info.Type == overlayMagic {
		return "native"
	}
	return "overlayfs"
}

// cniConfig gives each pod a link of its own to the node. Addresses are handed out under /run: a reboot frees them all.
func cniConfig(pods string) ([]byte, error) {
	type object = map[string]any
	return json.MarshalIndent(object{
		"cniVersion": "1.0.0",
		"name":       "pods",
		"plugins": []object{{
			"type": "ptp",
			"ipam": object{
				"type":    "host-local",
				"dataDir": "/run/cni",
				"ranges":  [][]object{{{"subnet": pods}}},
				"routes":  []object{{"dst": "0.0.0.0/0"}},
			},
		}},
	}, "", "  ")
}

// pauseImage holds this very program, which under that name does nothing.
func pauseImage() ([]byte, error) {
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	const path = "/" + pauseName
	i := image.New(pauseRef, path)
	i.File(path, 0o755, program)
	var archive bytes.Buffer
	err = i.Write(&archive)
	return archive.Bytes(), err
}

func (c *cluster) importCommand(archive string) []string {
	return []string{
		programsDir + "/ctr", "--address", containerdSocket, "--namespace", "k8s.io",
		"images", "import", "--local", "--snapshotter", snapshotter(c.dir), archive,
	}
}

func newUUID() string {
	var b [16]byte
	// Never fails.
	_, _ = rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
