package main

// record is what the callers of a process saw from settings.MeasureMs on.
type record struct {
	Asked, Local int64
	// Granted has for each grant when it was asked for and when it was answered, in ms since
	// settings.BeginMs.
	Granted [][2]int32
}

// count adds up the records. A grant was charged between the moment it was asked for and that of its answer,
// so a second certainly held those that were asked for and answered in it.
func count(records []record, s settings) (r result) {
	ms := int(s.EndMs-s.BeginMs) + 2000
	answered, across := make([]int64, ms+1), make([]int64, ms+1)
	var admitted int64
	from := int32(s.MeasureMs - s.BeginMs)
	for _, one := range records {
		r.asked, r.local = r.asked+one.Asked, r.local+one.Local
		for _, g := range one.Granted {
			at := min(int(g[1]), ms)
			answered[at]++
			if g[1] >= from && at < int(s.EndMs-s.BeginMs) {
				admitted++
			}
			for t := int(g[0]) + 1; t <= at; t++ {
				across[t]++ // it may have been charged before t
			}
		}
	}
	var held int64
	for end := range answered {
		held += answered[end]
		if end >= 1000 {
			held -= answered[end-1000]
			r.most = max(r.most, held-across[end-999])
		}
	}
	seconds := (s.EndMs - s.MeasureMs) / 1000
	r.asked, r.local, r.admitted = r.asked/seconds, r.local/seconds, admitted/seconds
	return r
}
