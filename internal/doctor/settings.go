package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/streamcounter/streamcounter/internal/english"
)

// settingsOf checks the settings of servers, as far as the servers report them.
func settingsOf(servers []*server) []Finding {
	var all []Finding
	for _, look := range []func(*server) Finding{
		version, policy, memory, persistence, nodeBytes, nodeEntries, lazyExpire, replicas, uncheckedSettings,
	} {
		all = append(all, worstOf(servers, look)...)
	}
	return all
}

// oldestRedis is the oldest version of Redis that is supported; alerts.OldestServer is the oldest of NATS.
const oldestRedis = "7.0"

func version(s *server) Finding {
	const check = "redis.version"
	if s.infoErr != nil {
		return notChecked(check, s.infoErr, "ACL SETUSER <user> +info")
	}
	have := s.info["redis_version"]
	if have == "" {
		return found(check, "the server says no version: an embedded one, or something in between").as(Note,
			"the embedded Redis is for trying things out: it keeps nothing, and its clock and trimming differ", "")
	}
	name := have
	if valkey := s.info["valkey_version"]; valkey != "" {
		name = "Valkey " + valkey + ", like Redis " + have
	}
	if older(have, oldestRedis) {
		return found(check, name+", needed is "+oldestRedis+" or later").as(Problem,
			"the scripts and the detection of lost events need commands of 7.0", "upgrade Redis")
	}
	return found(check, name)
}

// older compares the first two numbers of two versions.
func older(have, than string) bool {
	var a, b [2]int
	_, _ = fmt.Sscanf(have, "%d.%d", &a[0], &a[1]) // no number: 0
	_, _ = fmt.Sscanf(than, "%d.%d", &b[0], &b[1])
	return slices.Compare(a[:], b[:]) < 0
}

func policy(s *server) Finding {
	have := s.info["maxmemory_policy"]
	if have == "" {
		return Finding{}
	}
	f, severity := found("redis.maxmemory-policy", have), Problem
	if have == "noeviction" {
		return f
	}
	f.Found = have + " with maxmemory " + size(s.bytes("maxmemory"))
	if s.bytes("maxmemory") == 0 {
		severity, f.Found = Warning, have+", without effect until maxmemory is set"
	}
	expire := ""
	if strings.HasPrefix(have, "volatile-") {
		expire = ", as all of them have an expiry"
	}
	return f.as(severity, "Redis may evict counters and events when its memory is full"+expire+
		": limits would not hold and events would be lost", "CONFIG SET maxmemory-policy noeviction")
}

// bytes reads a number of INFO, 0 if there is none.
func (s *server) bytes(name string) int64 {
	n, _ := strconv.ParseInt(s.info[name], 10, 64)
	return n
}

func memory(s *server) Finding {
	const check = "redis.memory"
	used, most := s.bytes("used_memory"), s.bytes("maxmemory")
	if used == 0 {
		return Finding{}
	}
	if most == 0 {
		return found(check, "no maxmemory; "+size(used)+" used of the machine's "+
			size(s.bytes("total_system_memory"))).as(Note,
			"Redis would grow until the system ends it; with a bound, what is too much is refused and seen",
			"CONFIG SET maxmemory <bytes>, with noeviction")
	}
	pct := used * 100 / most
	f := found(check, fmt.Sprintf("%s of %s used (%d %%)", size(used), size(most), pct))
	return grade(f, pct, 75, 90,
		"at the bound appends are refused and checks follow on_error; stored events still count",
		"CONFIG SET maxmemory <more bytes>, or shorter windows and retention")
}

func persistence(s *server) Finding {
	const check, turnOn = "redis.persistence", "CONFIG SET appendonly yes"
	aof, known := s.info["aof_enabled"]
	if !known {
		return Finding{}
	}
	fsync, save := s.config["appendfsync"], s.config["save"]
	switch {
	case aof == "1" && (s.info["aof_last_write_status"] == "err" || s.info["aof_last_bgrewrite_status"] == "err"):
		return found(check, "the append-only file cannot be written").as(Problem,
			"Redis refuses writes, or a restart loses what came since", "look at the disk and at Redis's log")
	case aof == "1" && fsync == "no":
		return found(check, "appendonly yes, appendfsync no").as(Warning,
			"a crash of the machine costs what the system had not written: half a minute or more",
			"CONFIG SET appendfsync everysec")
	case aof == "1" && fsync == "":
		return found(check, "appendonly yes")
	case aof == "1":
		return found(check, "appendonly yes, appendfsync "+fsync)
	case len(s.config) > 0 && save == "":
		return found(check, "nothing is kept: appendonly no, no snapshots").as(Warning,
			"a restart of Redis forgets all events, counts and decisions", turnOn)
	}
	f := found(check, "appendonly no")
	if save != "" {
		f.Found += ", snapshots alone (save " + save + ")"
	}
	return f.as(Warning, "a restart after a crash forgets all events and counts since the last snapshot", turnOn)
}

func (s *server) number(name string) (n int, known bool) {
	n, err := strconv.Atoi(s.config[name])
	return n, err == nil
}

func nodeBytes(s *server) Finding {
	n, known := s.number("stream-node-max-bytes")
	if !known {
		return Finding{}
	}
	f := found("redis.stream-node-max-bytes", strconv.Itoa(n))
	if n == 0 || n > 1024 {
		f = f.as(Warning, "Redis takes more memory than it needs for keys with few events (about 4 KB for the first; "+
			"0.8 KB at 512)", "CONFIG SET stream-node-max-bytes 512")
	}
	return f
}

func nodeEntries(s *server) Finding {
	const fix = "CONFIG SET stream-node-max-entries 100"
	n, known := s.number("stream-node-max-entries")
	if !known {
		return Finding{}
	}
	f := found("redis.stream-node-max-entries", strconv.Itoa(n))
	switch {
	case n == 0 || n > 1000:
		f = f.as(Note, "streams are trimmed by whole nodes: each may keep as many entries more than it needs", fix)
	case n < 20:
		f = f.as(Note, "a trim takes 100 nodes at most: a counter of a busy key may not be trimmed as fast as it grows",
			fix)
	}
	return f
}

func lazyExpire(s *server) Finding {
	have, known := s.config["lazyfree-lazy-expire"]
	if !known {
		return Finding{}
	}
	f := found("redis.lazyfree-lazy-expire", have)
	if have == "no" {
		f = f.as(Note, "Redis pauses while it frees the counter of a busy key that expires",
			"CONFIG SET lazyfree-lazy-expire yes")
	}
	return f
}

func replicas(s *server) Finding {
	const check = "redis.replicas"
	have := int(s.bytes("connected_slaves"))
	least, known := s.number("min-replicas-to-write")
	f := found(check, english.Plural(have, "replica"))
	if known {
		f.Found += fmt.Sprintf(", min-replicas-to-write %d", least)
	}
	switch {
	case s.info["role"] == "":
		return Finding{}
	case s.info["role"] == "slave":
		f = found(check, "this is a replica of "+s.info["master_host"]).as(Problem, "it refuses every write",
			"give the master to --redis, or redis+sentinel://")
	case known && least > have:
		f = f.as(Problem, "Redis refuses every write until as many replicas are connected",
			"connect the replicas, or CONFIG SET min-replicas-to-write 0")
	case have == 0 && s.info["cluster_enabled"] == "1":
		f = f.as(Warning, "while this master is away, its partitions take no events, and on_error decides their checks",
			"redis-cli --cluster add-node NEW_HOST:PORT HOST:PORT --cluster-slave")
	case known && have > 0 && least == 0:
		f = f.as(Note, "a master that is cut off goes on taking events and checks that a failover then forgets",
			"CONFIG SET min-replicas-to-write 1")
	}
	return f
}

// uncheckedSettings reports what was not checked because CONFIG GET is refused.
func uncheckedSettings(s *server) Finding {
	if s.configErr == nil {
		return Finding{}
	}
	f := notChecked("redis.settings", s.configErr, "ACL SETUSER <user> +config|get")
	f.Why = "not checked: " + strings.Join(wanted, ", ")
	return f
}

// clocksOf compares each server's clock with this machine's, and the servers' clocks with each other.
func clocksOf(servers []*server, retention time.Duration) []Finding {
	const check = "redis.clock"
	var low, high time.Duration
	for i, s := range servers {
		if s.clockErr != nil {
			return []Finding{notChecked(check, s.clockErr, "ACL SETUSER <user> +time")}
		}
		if i == 0 {
			low, high = s.ahead, s.ahead
		}
		low, high = min(low, s.ahead), max(high, s.ahead)
	}
	all := worstOf(servers, func(s *server) Finding {
		off := max(s.ahead.Abs()-s.unsure, 0)
		if off < time.Second {
			return found(check, "within a second of this machine's")
		}
		way := "behind"
		if s.ahead > 0 {
			way = "ahead of"
		}
		f := found(check, fmt.Sprintf("%v %s this machine's", s.ahead.Abs().Round(time.Second), way))
		return grade(f, off, 0, retention/2,
			"producers forget events older than the retention by their own clock: one that is ahead of Redis "+
				"forgets too early, and waits are by Redis's clock",
			"set both clocks by NTP (timedatectl set-ntp true)")
	})
	if apart := high - low; apart >= time.Second {
		all = append(all, found("redis.clocks", "masters are "+apart.Round(time.Second).String()+" apart").as(Warning,
			"an event's time is its master's, so keys on different masters live in different times",
			"set all clocks by NTP"))
	}
	return all
}
