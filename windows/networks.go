package windows

import (
	"maps"
	"net/netip"
	"slices"

	// A trie of prefixes without dependencies: a change makes a new one (InsertPersist), so a look-up takes no lock.
	"github.com/gaissmai/bart"

	"github.com/streamcounter/streamcounter/api"
)

// MaxOverrideNetworks bounds how many networks have an override.
const MaxOverrideNetworks = 100_000

// networks are the overrides of networks, by what stands before the address in a key. They never change: put makes
// others.
type networks struct {
	tables  map[string]*bart.Table[*Override] // prefix of keys → networks
	lengths []int                             // of the prefixes, in bytes, each once
	count   int
}

// find gives what is in effect for a key by its address: the override of the smallest network that has it.
func (n *networks) find(key string) (found *Override) {
	if n == nil {
		return nil
	}
	bits := -1
	for _, length := range n.lengths {
		if length >= len(key) {
			continue
		}
		table := n.tables[key[:length]]
		if table == nil {
			continue
		}
		address, ok := api.AddressOf(key[length:])
		if !ok {
			continue
		}
		if o, at := longest(table, address); o != nil && at > bits {
			found, bits = o, at
		}
	}
	return found
}

// longest gives the override of the longest network with the address that has not ended, and its bits.
func longest(table *bart.Table[*Override], address netip.Addr) (*Override, int) {
	if _, any := table.Lookup(address); !any {
		return nil, 0
	}
	for network, o := range table.Supernets(netip.PrefixFrom(address, address.BitLen())) { // the longest first
		if o.stands() {
			return o, network.Bits()
		}
	}
	return nil, 0
}

// get gives what is set for a network, ended or not.
func (n *networks) get(of api.Network) *Override {
	if n == nil || n.tables[of.Prefix] == nil {
		return nil
	}
	o, _ := n.tables[of.Prefix].Get(of.Addresses)
	return o
}

// put gives the networks with other overrides of some of them; nil removes.
func (n *networks) put(changes map[api.Network]*Override) *networks {
	next := &networks{tables: map[string]*bart.Table[*Override]{}}
	if n != nil {
		next.tables = maps.Clone(n.tables)
	}
	for of, o := range changes {
		table := next.tables[of.Prefix]
		switch {
		case o != nil && table == nil:
			table = &bart.Table[*Override]{}
			fallthrough
		case o != nil:
			table = table.InsertPersist(of.Addresses, o)
		case table != nil:
			table = table.DeletePersist(of.Addresses)
		}
		if table != nil && table.Size() > 0 {
			next.tables[of.Prefix] = table
		} else {
			delete(next.tables, of.Prefix)
		}
	}
	for prefix, table := range next.tables {
		next.lengths = append(next.lengths, len(prefix))
		next.count += table.Size()
	}
	slices.Sort(next.lengths)
	next.lengths = slices.Compact(next.lengths)
	return next
}

func (n *networks) each(visit func(*Override)) {
	if n == nil {
		return
	}
	for _, table := range n.tables {
		for _, o := range table.All() {
			visit(o)
		}
	}
}

func (n *networks) size() int {
	if n == nil {
		return 0
	}
	return n.count
}
