{{/* wisp.name: the release's name, with the chart's if that does not say wisp yet; at most 40 characters. */}}
{{- define "wisp.name" -}}
{{- $name := .Release.Name -}}
{{- if not (contains "wisp" $name) }}{{ $name = printf "%s-wisp" $name }}{{ end -}}
{{- $name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{/* wisp.component: (list $ "gateway") → the name of that component's objects. */}}
{{- define "wisp.component" -}}
{{- printf "%s-%s" (include "wisp.name" (index . 0)) (index . 1) -}}
{{- end }}

{{/* wisp.selector: (list $ "gateway") → the labels that only that component's pods carry. */}}
{{- define "wisp.selector" -}}
app.kubernetes.io/name: wisp-{{ index . 1 }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
{{- end }}

{{/* wisp.podlabels: (list $ "gateway") → labels of that component's pods, which an upgrade of the chart alone leaves as they are. */}}
{{- define "wisp.podlabels" -}}
{{ include "wisp.selector" . }}
app.kubernetes.io/component: {{ index . 1 }}
app.kubernetes.io/part-of: wisp
{{- end }}

{{/* wisp.labels: (list $ "gateway") → labels of every object of that component. */}}
{{- define "wisp.labels" -}}
{{ include "wisp.podlabels" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (index . 0).Chart.Name (index . 0).Chart.Version }}
{{- end }}

{{/* wisp.image: (list $ "runtime") → registry/repository, with the digest if there is one, else with the tag. */}}
{{- define "wisp.image" -}}
{{- $root := index . 0 -}}{{- $image := index $root.Values.images (index . 1) -}}
{{- $name := $image.repository -}}
{{- with $root.Values.images.registry }}{{ $name = printf "%s/%s" . $name }}{{ end -}}
{{- if $image.digest }}{{ printf "%s@%s" $name $image.digest }}{{ else }}{{ printf "%s:%s" $name (default $root.Chart.AppVersion $image.tag) }}{{ end -}}
{{- end }}

{{/* wisp.tokens: the Secret with the keys that tokens of pods and of demand are derived from. */}}
{{- define "wisp.tokens" -}}
{{- default (include "wisp.component" (list $ "tokens")) .Values.podTokens.existingSecret -}}
{{- end }}

{{/* wisp.alone: fails where another release serves one of our namespaces; two operators would undo each other's work. */}}
{{- define "wisp.alone" -}}
{{- $mine := printf "%s/%s" .Release.Namespace .Release.Name -}}
{{- $roles := list -}}
{{- range default (list "") .Values.watchNamespaces -}}
{{- $roles = concat $roles ((lookup "rbac.authorization.k8s.io/v1" "Role" . "").items | default (list)) -}}
{{- end -}}
{{- if not .Values.watchNamespaces -}}
{{- $roles = concat $roles ((lookup "rbac.authorization.k8s.io/v1" "ClusterRole" "" "").items | default (list)) -}}
{{- end -}}
{{- range $roles -}}
{{- $labels := .metadata.labels | default dict -}}
{{- $notes := .metadata.annotations | default dict -}}
{{- $name := get $notes "meta.helm.sh/release-name" -}}{{- $space := get $notes "meta.helm.sh/release-namespace" -}}
{{- $where := .metadata.namespace | default "" -}}
{{- $serves := or (not $where) (hasSuffix "-models" .metadata.name) -}}
{{- if and $serves (eq (get $labels "app.kubernetes.io/name") "wisp-operator") $name (ne (printf "%s/%s" $space $name) $mine) -}}
{{- $what := $where | empty | ternary "every namespace" (printf "namespace %s" $where) -}}
{{- fail (printf "this cluster has a release of Wisp already, %s in namespace %s, and its operator serves %s. Upgrade that one (helm upgrade %s … --namespace %s), or uninstall it first (helm uninstall %s --namespace %s)." $name $space $what $name $space $name $space) -}}
{{- end -}}
{{- end -}}
{{- end }}
