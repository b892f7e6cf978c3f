package lua

// Distinct counts the different values of a field. It has a form per field (windows/distinct.go).
const Distinct = "distinct"

var distinct = Algorithm{Name: Distinct}

// DistinctOf is the value of Meter.More for Distinct: how many values a transition has, under the name Field.
type DistinctOf struct {
	Publish int    `json:"publish"`
	Field   string `json:"field"`
}
