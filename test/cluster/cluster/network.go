package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"
)

// The addresses of a cluster follow from its slot, so that several clusters can be up side by side. All are in
// 198.18.0.0/15, which is set aside for test networks and thus never collides with a real one:
//
//	198.18.<slot>.0/24             .1 the host, .2 the control plane, .10+i node i
//	198.19.<16*slot>.0/20          pods; node i has 198.19.<16*slot+i>.0/24
//	10.96.0.0/16                   services; known inside the members only
//
// The bridge that joins the members is in the control plane's network namespace, not on the host: no firewall of the host
// sees the traffic, and it vanishes with the control plane. The host has one interface, aq<slot>, the other end of which
// is plugged into the bridge.
const (
	slots       = 16
	maxNodes    = 16
	serviceCIDR = "10.96.0.0/16"
	apiService  = "10.96.0.1"
	dnsService  = "10.96.0.10"
	apiPort     = 6443
	controlHost = 2
	firstNode   = 10
	bridge      = "br0"
	uplink      = "uplink"
	nodeLink    = "eth0"
)

type slot int

func (s slot) hostLink() string  { return fmt.Sprintf("aq%d", s) }
func (s slot) host() string      { return fmt.Sprintf("198.18.%d.1", s) }
func (s slot) control() string   { return fmt.Sprintf("198.18.%d.2", s) }
func (s slot) node(i int) string { return fmt.Sprintf("198.18.%d.%d", s, 10+i) }
func (s slot) podCIDR() string   { return fmt.Sprintf("198.19.%d.0/20", slots*int(s)) }
func (s slot) pods(i int) string { return fmt.Sprintf("198.19.%d.0/24", slots*int(s)+i) }
func (s slot) apiURL() string {
	return "https://" + net.JoinHostPort(s.control(), strconv.Itoa(apiPort))
}
func nodeName(i int) string       { return fmt.Sprintf("node-%d", i) }
func nodeIndex(name string) int   { i, _ := strconv.Atoi(strings.TrimPrefix(name, "node-")); return i }
func withPrefix(ip string) string { return ip + "/24" }

// mac is a fixed hardware address. A bridge left to itself takes another one when a port comes or goes, and a node would
// have a new one at every boot: whoever remembers the old one would talk to nobody for half a minute.
func (s slot) mac(host int) string { return fmt.Sprintf("02:c6:12:00:%02x:%02x", int(s), host) }

// takeSlot plugs the host into the control plane's namespace under the first free interface name. Creating the interface
// is what takes the slot; it is gone when the control plane is.
func takeSlot(ctx context.Context, control process) (slot, error) {
	for s := range slot(slots) {
		if linkNumber(s.hostLink()) != 0 {
			continue
		}
		err := ip(ctx, nil, fmt.Sprintf("link add %s type veth peer name %s netns %d", s.hostLink(), uplink, control.pid))
		if err != nil && ctx.Err() == nil && linkNumber(s.hostLink()) != 0 {
			continue
		}
		return s, err
	}
	return 0, fmt.Errorf("all %d slots for clusters are taken: interfaces aq0 to aq%d exist", slots, slots-1)
}

// linkNumber identifies an interface of the host; 0 is none.
func linkNumber(name string) int {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return 0
	}
	return link.Index
}

// disconnectHost removes the cluster's interface. The kernel does that, too, but only when the last connection that nobody
// closed in the dead namespace has timed out.
func disconnectHost(ctx context.Context, s slot, number int) error {
	if number == 0 || linkNumber(s.hostLink()) != number {
		return nil
	}
	err := ip(ctx, nil, "link delete "+s.hostLink())
	if err != nil && linkNumber(s.hostLink()) != number {
		return nil
	}
	return err
}

// orphanRetries shortens that time to a second.
var orphanRetries = pin{"/proc/sys/net/ipv4/tcp_orphan_retries", "1"}

// connectHost gives the host its address and the ways to the pods.
func connectHost(ctx context.Context, s slot, nodes int) error {
	lines := []string{
		fmt.Sprintf("address add %s dev %s", withPrefix(s.host()), s.hostLink()),
		fmt.Sprintf("link set %s up", s.hostLink()),
	}
	return ip(ctx, nil, append(lines, podRoutes(s, nodes, -1)...)...)
}

// connectControl makes the bridge and gives the control plane its address on it.
func connectControl(ctx context.Context, s slot, control process, nodes int) error {
	lines := []string{
		"link set lo up",
		fmt.Sprintf("link add %s address %s type bridge", bridge, s.mac(controlHost)),
		fmt.Sprintf("address add %s dev %s", withPrefix(s.control()), bridge),
		fmt.Sprintf("link set %s up", bridge),
		fmt.Sprintf("link set %s master %s up", uplink, bridge),
		fmt.Sprintf("route add default via %s", s.host()),
	}
	return ip(ctx, &control, append(lines, podRoutes(s, nodes, -1)...)...)
}

// connectNode plugs a node into the bridge.
func connectNode(ctx context.Context, s slot, control, node process, i, nodes int) error {
	port := nodeName(i)
	err := ip(ctx, &control,
		fmt.Sprintf("link add %s type veth peer name %s address %s netns %d", port, nodeLink, s.mac(firstNode+i), node.pid),
		fmt.Sprintf("link set %s master %s up", port, bridge))
	if err != nil {
		return err
	}
	lines := []string{
		"link set lo up",
		fmt.Sprintf("address add %s dev %s", withPrefix(s.node(i)), nodeLink),
		fmt.Sprintf("link set %s up", nodeLink),
		fmt.Sprintf("route add default via %s", s.host()),
	}
	return ip(ctx, &node, append(lines, podRoutes(s, nodes, i)...)...)
}

// disconnectNode removes the bridge's port of a node that has died, in case the kernel has not done so yet.
func disconnectNode(ctx context.Context, control process, i int) error {
	return waitUntil(ctx, func() error {
		port := nodeName(i)
		if ip(ctx, &control, "link show "+port) != nil {
			return nil
		}
		if err := ip(ctx, &control, "link delete "+port); err != nil {
			return err
		}
		return fmt.Errorf("interface %s of the dead node is still there", port)
	})
}

// podRoutes are the ways to the pods of all nodes but one.
func podRoutes(s slot, nodes, except int) []string {
	var lines []string
	for i := range nodes {
		if i != except {
			lines = append(lines, fmt.Sprintf("route add %s via %s", s.pods(i), s.node(i)))
		}
	}
	return lines
}

// ip runs ip(8) commands, in a process's network namespace where one is given.
func ip(ctx context.Context, in *process, lines ...string) error {
	args := []string{"ip", "-batch", "-"}
	if in != nil {
		args = append([]string{"nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", in.pid)}, args...)
	}
	command := exec.CommandContext(ctx, args[0], args[1:]...)
	command.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	output, err := command.CombinedOutput()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("network can't be set up: %s: %w", bytes.TrimSpace(output), err)
	}
	return nil
}
