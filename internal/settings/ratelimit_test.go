package settings

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// Errors name the variable and leave out the tokens and passwords in it.
func TestRateLimitErrorsShowNoSecrets(t *testing.T) {
	for variable, c := range map[string]map[string]string{
		"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS": {"CONFIG_TYPE": typeXDS,
			"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS": "authorization=Bearer s3cr3t"},
		"REDIS_URL":  {"REDIS_URL": "me:s3cr3t@redis:6379"},
		"REDIS_TYPE": {"REDIS_URL": "me:s3cr3t@redis:6379", "REDIS_TYPE": "SENTINEL"},
		"SHADOW_MODE": {"REDIS_URL": "redis://me:s3cr3t@redis:6379", "REDIS_AUTH": "s3cr3t", "SHADOW_MODE": "maybe",
			"GRPC_PORT": "x"},
	} {
		warnings, err := takeVariables(t, c)
		if err == nil || !strings.Contains(err.Error(), strings.Replace(variable, "_TYPE", "_URL", 1)+" is ") ||
			strings.Contains(err.Error()+strings.Join(warnings, ""), "s3cr3t") {
			t.Errorf("%s: %v %v", variable, err, warnings)
		}
	}
}

// Without TLS, CA certificates of clients would have no effect, and everybody could connect.
func TestRateLimitWarnsOfClientCertificatesWithoutTLS(t *testing.T) {
	v := map[string]string{"REDIS_URL": "redis://h:1", "GRPC_CLIENT_TLS_CACERT": "/ca.pem"}
	warnings, err := takeVariables(t, v)
	testkit.Must(t, err)
	if len(warnings) != 1 || !strings.Contains(warnings[0], "GRPC_CLIENT_TLS_CACERT") ||
		!strings.Contains(warnings[0], "GRPC_SERVER_USE_TLS") {
		t.Errorf("warnings: %q", warnings)
	}
	v["GRPC_SERVER_USE_TLS"], v["GRPC_SERVER_TLS_CERT"], v["GRPC_SERVER_TLS_KEY"] = "true", "/cert.pem", "/key.pem"
	if warnings, err = takeVariables(t, v); err != nil || len(warnings) != 0 {
		t.Errorf("with TLS: %q %v", warnings, err)
	}
}

func takeVariables(t *testing.T, variables map[string]string) (warnings []string, err error) {
	t.Helper()
	c, cmd := New(), &cobra.Command{}
	for _, g := range c.groups {
		c.Flags(cmd, g.name)
	}
	return c.fromRatelimit(cmd.Flags(), func(name string) (string, bool) {
		v, ok := variables[name]
		return v, ok
	}, map[string]string{})
}
