package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"

	"aliquot.dev/test/cluster/internal/pki"
)

// credentials are the cluster's authority and what the members' files are made with.
type credentials struct {
	authority *pki.Authority
	api       string
}

// issue writes a certificate and its key as NAME.crt and NAME.key.
func (k credentials) issue(folder, name string, identity pki.Identity) error {
	pair, err := k.authority.Issue(identity)
	if err != nil {
		return err
	}
	return writeFiles(folder, map[string][]byte{name + ".crt": pair.Certificate, name + ".key": pair.Key})
}

// kubeconfig writes a kubeconfig for a client of the API.
func (k credentials) kubeconfig(path, context string, identity pki.Identity) error {
	pair, err := k.authority.Issue(identity)
	if err != nil {
		return err
	}
	text, err := k.authority.Kubeconfig(k.api, context, pair)
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}

// writeControl writes what the control plane reads at start, and the kubeconfig for people.
func (c *cluster) writeControl(r *record, k credentials) error {
	folder := c.memberConfig(controlMember)
	admin := pki.Identity{Name: "admin", Groups: []string{"system:masters"}}
	if err := k.kubeconfig(c.kubeconfig(), c.name, admin); err != nil {
		return err
	}
	for name, user := range map[string]string{
		"kube-controller-manager": "system:kube-controller-manager",
		"kube-scheduler":          "system:kube-scheduler",
		"kube-proxy":              "system:kube-proxy",
	} {
		if err := k.kubeconfig(filepath.Join(folder, name+".kubeconfig"), c.name, pki.Identity{Name: user}); err != nil {
			return err
		}
	}
	serving := pki.Identity{
		Name: "kube-apiserver",
		Hosts: []string{
			"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
		},
		IPs: []net.IP{net.ParseIP(r.Slot.control()), net.ParseIP(apiService), net.IPv4(127, 0, 0, 1)},
	}
	if err := k.issue(folder, "serving", serving); err != nil {
		return err
	}
	client := pki.Identity{Name: "kube-apiserver", Groups: []string{"system:masters"}}
	if err := k.issue(folder, "kubelet-client", client); err != nil {
		return err
	}
	accounts, err := pki.SigningKey()
	if err != nil {
		return err
	}
	return writeFiles(folder, map[string][]byte{
		"ca.crt":               k.authority.Certificate(),
		"service-accounts.pub": accounts.Certificate,
		"service-accounts.key": accounts.Key,
	})
}

// apiReady is what almost everything waits for.
func apiReady(s slot, ca string) probe {
	return probe{What: "API server", URL: s.apiURL() + "/readyz", CA: ca}
}

func (c *cluster) controlSpec(r *record) spec {
	s := *r.Slot
	api := apiReady(s, configDir+"/ca.crt")
	return spec{
		Hostname: controlMember,
		Cgroup:   c.memberGroup(controlMember),
		Binds:    c.binds(r, controlMember),
		Sysctls: []pin{
			// Packets on the bridge have been through the rules of their own node.
			{"/proc/sys/net/bridge/bridge-nf-call-iptables", "0"},
			{"/proc/sys/net/ipv4/ip_forward", "1"},
			orphanRetries,
		},
		Components: []component{
			{
				Name: "etcd",
				Args: kube("etcd",
					"--data-dir=/var/lib/etcd",
					"--unsafe-no-fsync",
					"--listen-client-urls=http://127.0.0.1:2379",
					"--advertise-client-urls=http://127.0.0.1:2379",
					"--listen-peer-urls=http://127.0.0.1:2380"),
				Ready: probe{What: "etcd", URL: "http://127.0.0.1:2379/readyz"},
			},
			{
				Name: "kube-apiserver",
				Args: kube("kube-apiserver",
					"--etcd-servers=http://127.0.0.1:2379",
					"--bind-address="+s.control(),
					"--advertise-address="+s.control(),
					fmt.Sprintf("--secure-port=%d", apiPort),
					"--tls-cert-file="+configDir+"/serving.crt",
					"--tls-private-key-file="+configDir+"/serving.key",
					"--client-ca-file="+configDir+"/ca.crt",
					"--kubelet-certificate-authority="+configDir+"/ca.crt",
					"--kubelet-client-certificate="+configDir+"/kubelet-client.crt",
					"--kubelet-client-key="+configDir+"/kubelet-client.key",
					"--kubelet-preferred-address-types=InternalIP",
					"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
					"--service-account-key-file="+configDir+"/service-accounts.pub",
					"--service-account-signing-key-file="+configDir+"/service-accounts.key",
					"--service-cluster-ip-range="+serviceCIDR,
					"--authorization-mode=Node,RBAC",
					"--enable-admission-plugins=NodeRestriction",
					"--allow-privileged=true"),
				Ready: api,
			},
			{
				Name: "kube-controller-manager",
				Args: kube("kube-controller-manager",
					"--kubeconfig="+configDir+"/kube-controller-manager.kubeconfig",
					"--bind-address=127.0.0.1",
					"--leader-elect=false",
					// With the default limit its start takes seconds.
					"--kube-api-qps=1000",
					"--kube-api-burst=1000",
					"--flex-volume-plugin-dir=/var/lib/volume-plugins",
					"--root-ca-file="+configDir+"/ca.crt",
					"--service-account-private-key-file="+configDir+"/service-accounts.key",
					"--use-service-account-credentials=true"),
				Wait:  []probe{api},
				Ready: probe{What: "controller manager", URL: "https://127.0.0.1:10257/healthz"},
			},
			{
				Name: "kube-scheduler",
				Args: kube("kube-scheduler",
					"--kubeconfig="+configDir+"/kube-scheduler.kubeconfig",
					"--bind-address=127.0.0.1",
					"--leader-elect=false"),
				Wait:  []probe{api},
				Ready: probe{What: "scheduler", URL: "https://127.0.0.1:10259/readyz"},
			},
			// Webhooks are services. The proxy wants to be on some node, or it waits for one for half a minute.
			kubeProxy(s, nodeName(0), api),
		},
	}
}

func kubeProxy(s slot, node string, api probe) component {
	return component{
		Name: "kube-proxy",
		Args: kube("kube-proxy",
			"--kubeconfig="+configDir+"/kube-proxy.kubeconfig",
			"--hostname-override="+node,
			"--proxy-mode=iptables",
			"--iptables-min-sync-period=100ms",
			"--cluster-cidr="+s.podCIDR(),
			"--nodeport-addresses=primary",
			// The machine's, not the member's.
			"--conntrack-max-per-core=0",
			"--conntrack-tcp-timeout-established=0s",
			"--conntrack-tcp-timeout-close-wait=0s"),
		Wait:  []probe{api},
		Ready: probe{What: "kube-proxy", URL: "http://127.0.0.1:10256/healthz"},
	}
}

func kube(args ...string) []string {
	return append([]string{programsDir + "/kube"}, args...)
}

// binds are what all members have of their own.
func (c *cluster) binds(r *record, member string) []bind {
	return []bind{
		{filepath.Join(c.member(member), "lib"), "/var/lib"},
		{c.memberLog(member), "/var/log"},
		{filepath.Join(c.member(member), "tmp"), "/tmp"},
		{c.memberConfig(member), configDir},
		{r.Programs, programsDir},
	}
}

// makeFolders makes the sources of binds.
func (c *cluster) makeFolders(member string) error {
	for name, mode := range map[string]os.FileMode{"lib": 0o755, "tmp": 0o777 | os.ModeSticky} {
		folder := filepath.Join(c.member(member), name)
		if err := os.MkdirAll(folder, mode); err != nil {
			return err
		}
		// MkdirAll heeds the umask.
		if err := os.Chmod(folder, mode); err != nil {
			return err
		}
	}
	return os.Chmod(c.memberConfig(member), 0o700)
}

func writeFiles(folder string, files map[string][]byte) error {
	for name, content := range files {
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return err
		}
	}
	return nil
}
