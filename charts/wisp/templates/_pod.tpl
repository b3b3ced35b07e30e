{{/* wisp.pod: (list $ "gateway") → the fields that the pods of operator and gateway share: Pod Security "restricted". */}}
{{- define "wisp.pod" -}}
{{- $root := index . 0 -}}{{- $component := index . 1 -}}{{- $values := index $root.Values $component -}}
serviceAccountName: {{ include "wisp.component" . }}
enableServiceLinks: false
{{- with $root.Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- if $root.Values.priorityClass.create }}
priorityClassName: {{ include "wisp.name" $root }}
{{- else if $root.Values.priorityClass.name }}
priorityClassName: {{ $root.Values.priorityClass.name }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
topologySpreadConstraints:
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - topologyKey: {{ . }}
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "wisp.selector" (list $root $component) | nindent 8 }}
  {{- end }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* wisp.container: (list $ "gateway") → the fields that their containers share. */}}
{{- define "wisp.container" -}}
{{- $root := index . 0 -}}{{- $values := index $root.Values (index . 1) -}}
image: {{ include "wisp.image" (list $root "operator") }}
imagePullPolicy: {{ $root.Values.images.pullPolicy }}
securityContext:
  {{- include "wisp.restricted" $root | nindent 2 }}
resources:
  {{- toYaml $values.resources | nindent 2 }}
terminationMessagePolicy: FallbackToLogsOnError
{{- end }}

{{/* wisp.restricted: what a container gives up. */}}
{{- define "wisp.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* wisp.probe: (list "/readyz" 5 3) → path, seconds between probes, failures that count. */}}
{{- define "wisp.probe" -}}
httpGet:
  path: {{ index . 0 }}
  port: http
periodSeconds: {{ index . 1 }}
timeoutSeconds: 5
failureThreshold: {{ index . 2 }}
{{- end }}
