package gate

import "github.com/streamcounter/streamcounter/api"

// blocked returns an answer with what the decision of a block tells.
func blocked(a api.CheckAnswer, d api.Transition) api.CheckAnswer {
	a.Source, a.Override, a.Reason = api.SourceOverride, api.Override{Block: true}.Kind(), d.Reason
	if d.EndUnknown() {
		a.RetryAfterMs = -1
	}
	return a
}
