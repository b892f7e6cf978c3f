package deploy_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// Grafana can import the dashboard as it is: its data source is a variable, each panel has
// a place of its own, and says in a sentence what it shows and in which unit.
// That its queries give data is tested in cmd/streamcounter.
func TestDashboardCanBeImported(t *testing.T) {
	type source struct{ Type, UID string }
	type place struct{ X, Y, W, H int }
	var dashboard struct {
		ID            *int
		UID, Title    string
		SchemaVersion int
		Templating    struct{ List []struct{ Name, Type string } }
		Panels        []struct {
			ID                       int
			Type, Title, Description string
			Datasource               source
			GridPos                  place
			FieldConfig              struct{ Defaults struct{ Unit string } }
			Targets                  []struct {
				RefID, Expr string
				Datasource  source
			}
		}
	}
	testkit.Must(t, json.Unmarshal([]byte(read(t, "grafana-dashboard.json")), &dashboard))
	var variables []string
	for _, v := range dashboard.Templating.List {
		variables = append(variables, v.Name+" "+v.Type)
	}
	if dashboard.ID != nil || dashboard.UID == "" || dashboard.Title == "" || dashboard.SchemaVersion != 38 ||
		!slices.Equal(variables, []string{"datasource datasource", "job query", "instance query"}) {
		t.Errorf("id %v, uid %q, title %q, schema %d, variables %v", dashboard.ID, dashboard.UID, dashboard.Title,
			dashboard.SchemaVersion, variables)
	}
	want := source{"prometheus", "${datasource}"}
	for i, p := range dashboard.Panels {
		for _, other := range dashboard.Panels[:i] {
			a, b := p.GridPos, other.GridPos
			if p.ID == other.ID || p.Title == other.Title ||
				a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("%q and %q have one place, id or title", p.Title, other.Title)
			}
		}
		if p.GridPos.W < 1 || p.GridPos.H < 1 || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("%q lies at %+v", p.Title, p.GridPos)
		}
		if p.Type == "row" {
			continue
		}
		if p.Description == "" || p.FieldConfig.Defaults.Unit == "" || p.Datasource != want || len(p.Targets) == 0 {
			t.Errorf("%q lacks a description, a unit, the data source or a query", p.Title)
		}
		for _, target := range p.Targets {
			if target.RefID == "" || target.Expr == "" || target.Datasource != want {
				t.Errorf("%q has the query %+v", p.Title, target)
			}
		}
	}
	if len(dashboard.Panels) < 30 {
		t.Errorf("%d panels", len(dashboard.Panels))
	}
}
