package compare

import (
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Parse(pageText))

// section is a comparison as the page shows it.
type section struct {
	Name, Heading     string
	Rows              [][]string
	Notes             []string
	Firsts            []first
	Key               string
	Step, Window      string
	Admitted, Trailed template.HTML
}

// first is where an algorithm first went wrong, and how.
type first struct{ Algorithm, How, At, Key string }

// WritePage writes a page of HTML that needs nothing else: tables, plots, and
// the command that made it. Keys come from logs, so the template escapes all
// but the plots, which have no key in them.
func WritePage(w io.Writer, list []*Comparison, command string) error {
	var sections []section
	for _, c := range list {
		s, err := c.section()
		if err != nil {
			return err
		}
		sections = append(sections, s)
	}
	return page.Execute(w, map[string]any{"Columns": columns, "Sections": sections, "Footer": footer(list),
		"Command": command})
}

func (c *Comparison) section() (section, error) {
	s := section{Name: c.Trace.Name, Heading: c.heading(), Notes: c.notes()}
	for _, r := range c.Algorithms {
		s.Rows = append(s.Rows, r.row())
		if m := r.FirstOverAdmitted; m != nil {
			s.Firsts = append(s.Firsts, first{r.Algorithm, "over-admitted", spell(m.Ms), m.Key})
		}
		if m := r.FirstUnderAdmitted; m != nil {
			s.Firsts = append(s.Firsts, first{r.Algorithm, "under-admitted", spell(m.Ms), m.Key})
		}
	}
	trailed, admitted, key, window := c.pictures()
	s.Key, s.Step, s.Window = key, millis(admitted.step).String(), millis(window.WindowMs).String()
	var err error
	if s.Trailed, err = trailed.svg(); err == nil {
		s.Admitted, err = admitted.svg()
	}
	if err != nil {
		return s, fmt.Errorf("%s: %w", c.Trace.Name, err)
	}
	return s, nil
}

// pictures are of one key, the one that asked for most, and its longest window.
func (c *Comparison) pictures() (trailed, admitted picture, key string, longest WindowInfo) {
	trace := Trace{Requests: c.requests}
	_, key = trace.asked()
	longest = slices.MaxFunc(c.Windows, func(a, b WindowInfo) int { return cmp.Compare(a.WindowMs, b.WindowMs) })
	// A little before the first request, and until the last has left the window.
	first, last := c.Trace.FirstMs, c.Trace.LastMs
	end := last + longest.WindowMs
	begin := first - max(1, (end-first)/50)
	step, bars := max(1, (end-begin)/800), stepFor(last-first, 400)
	trailed = picture{y: "units in the last " + millis(longest.WindowMs).String(), from: begin - first, step: step,
		limit: longest.Limit}
	admitted = picture{y: "units admitted per " + millis(bars).String(), step: bars}
	oracleFirst := slices.Clone(c.Algorithms) // the others are drawn over it
	slices.SortStableFunc(oracleFirst, func(a, b Result) int { return cmp.Compare(order(a), order(b)) })
	for _, r := range oracleFirst {
		trailed.curves = append(trailed.curves, curve{r.Algorithm, trailing(c.requests, r.verdicts, key,
			longest.WindowMs, begin, end, step)})
		admitted.curves = append(admitted.curves, curve{r.Algorithm, admittedPer(c.requests, r.verdicts, key, first,
			last, bars)})
	}
	return trailed, admitted, key, longest
}

func order(r Result) int {
	if r.Kind == KindOracle {
		return 0
	}
	return 1
}
