package gate

import "github.com/streamcounter/streamcounter/api"

// blocked adds to an answer what the decision of a block contains.
func blocked(a api.CheckAnswer, d api.Transition) api.CheckAnswer {
	a.Source, a.Override, a.Reason = api.SourceOverride, api.Override{Block: true}.Kind(), d.Reason
	if d.EndUnknown() {
		a.RetryAfterMs = -1
	}
	return a
}
