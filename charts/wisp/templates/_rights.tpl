{{/* wisp.rights.operator: rules of the operator's role, in each namespace that it watches, or in the cluster. */}}
{{- define "wisp.rights.operator" -}}
# What the user wants is read, never written; the operator's answer is the status.
- apiGroups: [wisp.dev]
  resources: [inferencemodels]
  verbs: [list, watch]
- apiGroups: [wisp.dev]
  resources: [inferencemodels/status]
  verbs: [patch]
# For children with blockOwnerDeletion, where the cluster checks it (OpenShift does).
- apiGroups: [wisp.dev]
  resources: [inferencemodels/finalizers]
  verbs: [update]
# Children that live as long as their model; an apply that makes an object needs create besides patch.
- apiGroups: [apps]
  resources: [deployments]
  verbs: [list, watch, create, patch]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [list, watch, create, patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [list, watch, create, patch]
# Children that also go while their model stays; a Service with an address, so that it is made again without one.
- apiGroups: [""]
  resources: [services]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [inference.networking.k8s.io]
  resources: [inferencepools]
  verbs: [list, watch, create, patch, delete]
# Pods are made by their Deployments. operator.markIdlePods: which of them goes first (pod-deletion-cost).
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch{{ if .Values.operator.markIdlePods }}, patch{{ end }}]
{{- if not .Values.watchNamespaces }}
# GPUs, from the labels and the allocatable resources of nodes.
- apiGroups: [""]
  resources: [nodes]
  verbs: [list, watch]
{{- end }}
# Warnings about pods whose volumes do not come.
- apiGroups: [""]
  resources: [events]
  verbs: [list]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- end }}

{{/* wisp.rights.gateway: rules of the gateway's role, likewise. */}}
{{- define "wisp.rights.gateway" -}}
# Which models exist, and where their pods listen.
- apiGroups: [wisp.dev]
  resources: [inferencemodels]
  verbs: [list, watch]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list, watch]
{{- if .Values.gateway.readModelSecrets }}
# API keys of models with access.apiKeySecretRef: by name, never listed.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
{{- end }}
{{- end }}
