package overrides

import (
	"maps"
	"net/netip"
	"slices"

	// A trie of prefixes without dependencies. A change makes a new trie (InsertPersist), so a look-up needs no lock.
	"github.com/gaissmai/bart"

	"github.com/streamcounter/streamcounter/api"
)

// MaxNetworks bounds how many networks have an override.
const MaxNetworks = 100_000

// networks are the overrides of networks, by the prefix before the address in a key. They never change: put returns
// new networks.
type networks struct {
	tables  map[string]table // prefix of keys → networks
	lengths []int            // of the prefixes, in bytes, each once
	count   int
}

// find returns the override that is in effect for the address or the network of a key: that of the smallest network
// that contains it.
func (n *networks) find(key string) (found *Override) {
	bits := -1
	for _, length := range n.lengths {
		if length >= len(key) {
			continue
		}
		table := n.tables[key[:length]]
		if table == nil {
			continue
		}
		inner, ok := api.AddressesOf(key[length:])
		if !ok {
			continue
		}
		if o, at := table.longest(inner); o != nil && at > bits {
			found, bits = o, at
		}
	}
	return found
}

// get returns the override of a network, ended or not.
func (n *networks) get(of api.Network) *Override {
	if n.tables[of.Prefix] == nil {
		return nil
	}
	return n.tables[of.Prefix].get(of.Addresses)
}

// put returns the networks with these changes; a nil override removes one.
func (n *networks) put(changes map[api.Network]*Override) *networks {
	next := &networks{tables: maps.Clone(n.tables)}
	for of, o := range changes {
		table := next.tables[of.Prefix]
		if table == nil {
			table = trie{&bart.Table[*Override]{}}
		}
		table = table.with(of.Addresses, o)
		if table.size() > 0 {
			next.tables[of.Prefix] = table
		} else {
			delete(next.tables, of.Prefix)
		}
	}
	for prefix, table := range next.tables {
		next.lengths = append(next.lengths, len(prefix))
		next.count += table.size()
	}
	slices.Sort(next.lengths)
	next.lengths = slices.Compact(next.lengths)
	return next
}

func (n *networks) each(visit func(*Override)) {
	for _, table := range n.tables {
		table.each(visit)
	}
}

// BlockedNetworks returns the networks that are blocked now, in no order, each as a key such as ip:203.0.113.0/24. A
// nil All has none.
func (o *All) BlockedNetworks() (list []api.Throttled) {
	if o == nil {
		return nil
	}
	o.set.networks.Load().each(func(one *Override) {
		if n, ok := networkOf(one.target); ok && one.Blocks() && one.InEffect() {
			list = append(list, api.Throttled{Key: n.Prefix + n.Addresses.String(), Rule: api.OverrideRule,
				SinceMs: one.atMs, UntilMs: one.untilMs, Reason: one.Reason()})
		}
	})
	return list
}

// table maps networks to their overrides; it never changes. It is an interface so that only this package compiles the
// trie: a package that imports a struct with a field of a generic type compiles the type's methods again, here 1,700
// functions in a second of CPU.
type table interface {
	// longest returns the override that has not ended of the smallest network that contains inner, and its bits.
	longest(inner netip.Prefix) (*Override, int)
	get(network netip.Prefix) *Override
	// with returns a table with another override of a network; nil removes it.
	with(network netip.Prefix, o *Override) table
	each(visit func(*Override))
	size() int
}

// trie is the only implementation of table.
type trie struct{ of *bart.Table[*Override] }

func (t trie) longest(inner netip.Prefix) (*Override, int) {
	if _, contained := t.of.LookupPrefix(inner); !contained {
		return nil, 0
	}
	for network, o := range t.of.Supernets(inner) { // the smallest first
		if o.InEffect() {
			return o, network.Bits()
		}
	}
	return nil, 0
}

func (t trie) get(network netip.Prefix) *Override {
	o, _ := t.of.Get(network)
	return o
}

func (t trie) with(network netip.Prefix, o *Override) table {
	if o == nil {
		return trie{t.of.DeletePersist(network)}
	}
	return trie{t.of.InsertPersist(network, o)}
}

func (t trie) each(visit func(*Override)) {
	for _, o := range t.of.All() {
		visit(o)
	}
}

func (t trie) size() int { return t.of.Size() }
