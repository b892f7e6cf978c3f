{{/* The pod of a component: (dict "root" $ "component" "serve" "values" .Values.serve) */}}
{{- define "streamcounter.pod" -}}
{{- $root := .root -}}
{{- $v := $root.Values -}}
{{- $serve := eq .component "serve" -}}
{{- $etc := "/etc/streamcounter" -}}
{{- $preStop := ternary (int (.values.preStopSleepSeconds | default 0)) 0 $serve -}}
metadata:
  labels:
    {{- include "streamcounter.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
    {{- with .values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    # URLs of Redis and NATS are read at the start alone. Rules, tokens and certificates are read
    # again by the process, so that a change of them replaces no pod.
    checksum/servers: {{ toJson (dict "redis" $v.redis "nats" $v.nats) | sha256sum }}
    {{- with .values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- with $v.serviceAccountName }}
  serviceAccountName: {{ . }}
  {{- end }}
  {{- with $v.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  # preStop, then --drain-timeout, then 10 s more.
  terminationGracePeriodSeconds: {{ add $preStop (int $v.drainTimeoutSeconds) 10 }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    fsGroup: 65532
    seccompProfile: {type: RuntimeDefault}
  containers:
    - name: {{ .component }}
      image: {{ include "streamcounter.image" $root }}
      imagePullPolicy: {{ $v.image.pullPolicy }}
      args: [{{ .component }}{{ if and $serve (not $v.serve.grpc) }}, "--grpc="{{ end }}]
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      ports:
        - {name: http, containerPort: 8080}
        - {name: health, containerPort: 8085}
        {{- if and $serve $v.serve.grpc }}
        - {name: grpc, containerPort: 8082}
        {{- end }}
      env:
        - {name: GOMEMLIMIT, value: {{ .values.goMemLimit | quote }}}
        - {name: STREAMCOUNTER_HTTP, value: "0.0.0.0:8080"}
        - {name: STREAMCOUNTER_HEALTH, value: "0.0.0.0:8085"}
        {{- if and $serve $v.serve.grpc }}
        - {name: STREAMCOUNTER_GRPC, value: "0.0.0.0:8082"}
        {{- end }}
        - {name: STREAMCOUNTER_DRAIN_TIMEOUT, value: {{ printf "%ds" (int $v.drainTimeoutSeconds) | quote }}}
        - {name: STREAMCOUNTER_REDIS_FILE, value: {{ $etc }}/redis/url}
        {{- if $v.redis.tlsSecret }}
        - {name: STREAMCOUNTER_REDIS_CA, value: {{ $etc }}/redis-tls/ca.crt}
        {{- if $v.redis.clientCertificate }}
        - {name: STREAMCOUNTER_REDIS_CERT, value: {{ $etc }}/redis-tls/tls.crt}
        - {name: STREAMCOUNTER_REDIS_KEY, value: {{ $etc }}/redis-tls/tls.key}
        {{- end }}
        {{- end }}
        {{- if not $serve }}
        - {name: STREAMCOUNTER_NATS_FILE, value: {{ $etc }}/nats/url}
        {{- if $v.nats.credsKey }}
        - {name: STREAMCOUNTER_NATS_CREDS, value: {{ $etc }}/nats/creds}
        {{- end }}
        {{- if $v.nats.nkeyKey }}
        - {name: STREAMCOUNTER_NATS_NKEY, value: {{ $etc }}/nats/nkey}
        {{- end }}
        {{- if $v.nats.tlsSecret }}
        - {name: STREAMCOUNTER_NATS_CA, value: {{ $etc }}/nats-tls/ca.crt}
        {{- if $v.nats.clientCertificate }}
        - {name: STREAMCOUNTER_NATS_CERT, value: {{ $etc }}/nats-tls/tls.crt}
        - {name: STREAMCOUNTER_NATS_KEY, value: {{ $etc }}/nats-tls/tls.key}
        {{- end }}
        {{- end }}
        {{- end }}
        {{- if include "streamcounter.hasRules" $root }}
        - {name: STREAMCOUNTER_RULES, value: {{ $etc }}/rules/rules.yml}
        {{- end }}
        {{- if $v.rlsConfig }}
        - {name: STREAMCOUNTER_RLS_CONFIG, value: {{ $etc }}/rls}
        {{- end }}
        {{- if and $serve $v.extractors }}
        - {name: STREAMCOUNTER_EXTRACTORS, value: {{ $etc }}/extractors/extractors.yml}
        {{- end }}
        {{- if $v.access.open }}
        - {name: STREAMCOUNTER_OPEN, value: "true"}
        {{- end }}
        {{- if include "streamcounter.hasTokens" $root }}
        - {name: STREAMCOUNTER_TOKENS, value: {{ $etc }}/tokens/tokens.yml}
        {{- end }}
        {{- if $v.access.tlsSecret }}
        - {name: STREAMCOUNTER_TLS_CERT, value: {{ $etc }}/tls/tls.crt}
        - {name: STREAMCOUNTER_TLS_KEY, value: {{ $etc }}/tls/tls.key}
        {{- if $v.access.clientCA }}
        - {name: STREAMCOUNTER_TLS_CLIENT_CA, value: {{ $etc }}/tls/ca.crt}
        {{- end }}
        {{- end }}
        {{- range $name, $value := $v.settings }}
        - {name: STREAMCOUNTER_{{ $name | upper | replace "-" "_" }}, value: {{ ternary $value (toJson $value) (kindIs "string" $value) | quote }}}
        {{- end }}
        {{- range $name, $value := $v.env }}
        - {name: {{ $name }}, value: {{ $value | quote }}}
        {{- end }}
      resources:
        {{- toYaml .values.resources | nindent 8 }}
      {{- include "streamcounter.probes" . | nindent 6 }}
      {{- if $preStop }}
      lifecycle:
        preStop:
          sleep: {seconds: {{ $preStop }}}
      {{- end }}
      # Directories, not subPath: files of a subPath never change.
      volumeMounts:
        - {name: redis, mountPath: {{ $etc }}/redis, readOnly: true}
        {{- if $v.redis.tlsSecret }}
        - {name: redis-tls, mountPath: {{ $etc }}/redis-tls, readOnly: true}
        {{- end }}
        {{- if not $serve }}
        - {name: nats, mountPath: {{ $etc }}/nats, readOnly: true}
        {{- if $v.nats.tlsSecret }}
        - {name: nats-tls, mountPath: {{ $etc }}/nats-tls, readOnly: true}
        {{- end }}
        {{- end }}
        {{- if include "streamcounter.hasRules" $root }}
        - {name: rules, mountPath: {{ $etc }}/rules, readOnly: true}
        {{- end }}
        {{- if $v.rlsConfig }}
        - {name: rls, mountPath: {{ $etc }}/rls, readOnly: true}
        {{- end }}
        {{- if and $serve $v.extractors }}
        - {name: extractors, mountPath: {{ $etc }}/extractors, readOnly: true}
        {{- end }}
        {{- if include "streamcounter.hasTokens" $root }}
        - {name: tokens, mountPath: {{ $etc }}/tokens, readOnly: true}
        {{- end }}
        {{- if $v.access.tlsSecret }}
        - {name: tls, mountPath: {{ $etc }}/tls, readOnly: true}
        {{- end }}
        {{- with .values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  {{- include "streamcounter.volumes" . | nindent 2 }}
  {{- with .values.topologySpread }}
  {{- if .keys }}
  topologySpreadConstraints:
    {{- range .keys }}
    - maxSkew: 1
      topologyKey: {{ . }}
      whenUnsatisfiable: {{ $.values.topologySpread.whenUnsatisfiable }}
      matchLabelKeys: [pod-template-hash] # so that a rollout is spread by itself
      labelSelector:
        matchLabels:
          {{- include "streamcounter.selector" $root | nindent 10 }}
          app.kubernetes.io/component: {{ $.component }}
    {{- end }}
  {{- end }}
  {{- end }}
  {{- with .values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}
