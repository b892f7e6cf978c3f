// Package httpmw limits a net/http service: each request has a key, and one whose key is over its limit is answered
// with 429, Retry-After and the RateLimit headers. The guard, if there is one, is asked first and costs no round
// trip; the checker, if there is one, decides and charges. A request without a key passes (Config.RequireKey refuses
// it), and so does one whose key no rule matches (client.Config.UnmatchedKeys denies it). If nobody decides, a
// client.Client answers by its policy. With a transport alone, which has no policy, the answer is 503.
package httpmw
