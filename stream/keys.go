package stream

import (
	"fmt"
	"hash/crc32"
	"regexp"
	"strconv"
	"strings"
)

// Defaults of the contract.
const (
	DefaultPrefix     = "sc"
	DefaultPartitions = 16
	MaxPartitions     = 4096
)

// Keys names the keys of one prefix; docs/architecture.md describes each key. All
// keys of a partition have its number as hash tag, so that Redis Cluster keeps them
// in one slot and one script may use all of them.
type Keys struct {
	Prefix     string
	Partitions int
	tags       []string // partition → "prefix:{p}:"
}

var prefixForm = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,31}$`)

// NewKeys checks the prefix ([a-z0-9_-], up to 32) and the number of partitions.
func NewKeys(prefix string, partitions int) (*Keys, error) {
	if !prefixForm.MatchString(prefix) {
		return nil, fmt.Errorf("prefix %q: expected 1 to 32 of a-z, 0-9, '-' and '_', not beginning with '-' or '_'",
			prefix)
	}
	if partitions < 1 || partitions > MaxPartitions {
		return nil, fmt.Errorf("partitions %d: expected 1 to %d", partitions, MaxPartitions)
	}
	k := &Keys{Prefix: prefix, Partitions: partitions, tags: make([]string, partitions)}
	for p := range k.tags {
		k.tags[p] = prefix + ":{" + strconv.Itoa(p) + "}:"
	}
	return k, nil
}

// Partition returns the partition in which a key is counted: CRC32-IEEE of its hash
// tag, or of the whole key if it has none, modulo the number of partitions.
func (k *Keys) Partition(key string) int {
	return int(crc32.ChecksumIEEE([]byte(hashTag(key))) % uint32(k.Partitions))
}

// hashTag returns the hash tag of a key by the rule of Redis Cluster: the text between
// the first { and the next }, if it is not empty; otherwise the whole key.
func hashTag(key string) string {
	if i := strings.IndexByte(key, '{'); i >= 0 {
		if j := strings.IndexByte(key[i+1:], '}'); j > 0 {
			return key[i+1 : i+1+j]
		}
	}
	return key
}

// Events is the stream of a partition's request events.
func (k *Keys) Events(p int) string { return k.tags[p] + "events" }

// Levels is the hash of the keys that have reached a level.
func (k *Keys) Levels(p int) string { return k.tags[p] + "levels" }

// Due is the sorted set of the records to evaluate again, by when they are due.
func (k *Keys) Due(p int) string { return k.tags[p] + "due" }

// Outbox is the stream of transitions not yet published.
func (k *Keys) Outbox(p int) string { return k.tags[p] + "outbox" }

// Dead is the stream of events that could not be counted.
func (k *Keys) Dead(p int) string { return k.tags[p] + "dead" }

// IDs is the sorted set of the ids that producers have given events.
func (k *Keys) IDs(p int) string { return k.tags[p] + "ids" }

// Reservations is the hash of the reservations with keys in a partition.
func (k *Keys) Reservations(p int) string { return k.tags[p] + "reservations" }

// Holds is the sorted set of the reservations of a key in partition p, by when they expire.
func (k *Keys) Holds(p int, key string) string { return k.tags[p] + "holds:" + key }

// Relay is the lock of the one relay that publishes a partition's outbox.
func (k *Keys) Relay(p int) string { return k.tags[p] + "relay" }

// Counter is the state of one key in partition p; form identifies the algorithm
// in the name ("log" for the sliding log).
func (k *Keys) Counter(p int, form, key string) string { return k.tags[p] + form + ":" + key }

// Meta is the hash with the values that must not change while the prefix is in use, and the rules in use.
func (k *Keys) Meta() string { return k.Prefix + ":meta" }

// Processes is the hash of the processes that run, with the fingerprint of each one's rules.
func (k *Keys) Processes() string { return k.Prefix + ":processes" }

// Libraries is the sorted set of the libraries of Redis Functions in use, by the time until which they are (ms).
func (k *Keys) Libraries() string { return k.Prefix + ":libraries" }

// Activity is what one process has seen lately; it expires when that process ends.
func (k *Keys) Activity(process string) string { return k.Prefix + ":activity:" + process }

// All returns all partitions.
func (k *Keys) All() []int {
	all := make([]int, k.Partitions)
	for p := range all {
		all[p] = p
	}
	return all
}
