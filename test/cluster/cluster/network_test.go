package main

import (
	"net/netip"
	"testing"
)

// No address may be used twice, by whatever clusters are up side by side.
func TestAddressesOfAllSlotsAreApart(t *testing.T) {
	reserved := netip.MustParsePrefix("198.18.0.0/15")
	services := netip.MustParsePrefix(serviceCIDR)
	var networks []netip.Prefix
	add := func(text string) netip.Prefix {
		t.Helper()
		network := netip.MustParsePrefix(text)
		if network != network.Masked() {
			t.Errorf("%s isn't the beginning of its network", text)
		}
		if !reserved.Contains(network.Addr()) || network.Overlaps(services) {
			t.Errorf("%s is outside of %s", network, reserved)
		}
		for _, other := range networks {
			if network.Overlaps(other) {
				t.Errorf("%s overlaps %s", network, other)
			}
		}
		networks = append(networks, network)
		return network
	}
	for s := range slot(slots) {
		members := add(netip.MustParsePrefix(withPrefix(s.host())).Masked().String())
		seen := map[string]bool{}
		addresses := []string{s.host(), s.control()}
		pods := netip.MustParsePrefix(s.podCIDR())
		for i := range maxNodes {
			addresses = append(addresses, s.node(i))
			if own := add(s.pods(i)); !pods.Contains(own.Addr()) {
				t.Errorf("the pods of node %d, %s, are outside of %s", i, own, pods)
			}
		}
		for _, address := range addresses {
			if seen[address] || !members.Contains(netip.MustParseAddr(address)) {
				t.Errorf("slot %d uses %s twice or outside of %s", s, address, members)
			}
			seen[address] = true
		}
	}
}

func TestPodsOfAllOtherNodesAreReached(t *testing.T) {
	got := podRoutes(1, 3, 1)
	want := []string{"route add 198.19.16.0/24 via 198.18.1.10", "route add 198.19.18.0/24 via 198.18.1.12"}
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("routes are %q, want %q", got, want)
	}
}
