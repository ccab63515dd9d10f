{{/* Selector labels: they never change during the life of a release. */}}
{{- define "paddle-serving.selectorLabels" -}}
app.kubernetes.io/name: paddle-serving
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "paddle-serving.labels" -}}
{{ include "paddle-serving.selectorLabels" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "paddle-serving.serviceAccount" -}}
{{- .Values.serviceAccount.name | default .Release.Name -}}
{{- end -}}

{{/* Check rules between values. A message has key, value, limit, reason and fix. */}}
{{- define "paddle-serving.validate" -}}
{{- $model := .Values.model -}}
{{- if eq (empty $model.claim) (empty $model.s3) -}}
{{- fail (printf "model.claim is %q and model.s3 is %q, but exactly one of them must be given: a model is read from one place. Fix: Set model.claim and model.path for the shared storage, or model.s3 for an export." $model.claim $model.s3) -}}
{{- end -}}
{{- if ne (empty $model.claim) (empty $model.path) -}}
{{- fail (printf "model.path is %q with model.claim %q, but they belong together: the path is the model's folder in the claim. Fix: Set model.path to a folder such as quick-start/output/model with model.claim, and to an empty text with model.s3." $model.path $model.claim) -}}
{{- end -}}
{{- $request := dig "requests" "memory" "" .Values.resources | toString -}}
{{- $limit := dig "limits" "memory" "" .Values.resources | toString -}}
{{- if or (not $request) (ne $request $limit) -}}
{{- fail (printf "resources.limits.memory is %q, but must be given and equal resources.requests.memory, which is %q: a pod that uses more memory than it requests is killed first when a node runs out of memory. Fix: Set both to the same text." $limit $request) -}}
{{- end -}}
{{- if and (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) -}}
{{- fail "serviceAccount.name is empty, but must be given with serviceAccount.create false: the chart creates no service account then. Fix: Set it to a service account in this namespace, or set serviceAccount.create to true." -}}
{{- end -}}
{{- range .Values.extraEnv -}}
{{- if or (eq .name "HOME") (hasPrefix "PADDLE_" .name) -}}
{{- fail (printf "extraEnv has %s, but must have names that neither this chart nor the image sets: of two variables with one name the second silently overrides the first. Fix: Remove it." .name) -}}
{{- else if eq (hasKey . "value") (hasKey . "valueFrom") -}}
{{- fail (printf "extraEnv %s must have either value or valueFrom: a variable has one value. Fix: Set exactly one of them." .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
