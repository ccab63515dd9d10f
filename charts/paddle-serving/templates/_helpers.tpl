{{/* Labels that select: they never change in the life of a release. */}}
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

{{/* Checks that span values: key, value, limit, reason, mend. */}}
{{- define "paddle-serving.validate" -}}
{{- $model := .Values.model -}}
{{- if eq (empty $model.claim) (empty $model.s3) -}}
{{- fail (printf "model.claim is %q and model.s3 is %q, but exactly one of them must be given: a model is read from one place. Set model.claim and model.path for the shared storage, or model.s3 for an export." $model.claim $model.s3) -}}
{{- end -}}
{{- if ne (empty $model.claim) (empty $model.path) -}}
{{- fail (printf "model.path is %q with model.claim %q, but they go together: a claim holds many folders, and a bucket's model has none here. Set model.path to a folder such as quick-start/output/model with a claim, and to nothing with model.s3." $model.path $model.claim) -}}
{{- end -}}
{{- $request := dig "requests" "memory" "" .Values.resources | toString -}}
{{- $limit := dig "limits" "memory" "" .Values.resources | toString -}}
{{- if or (not $request) (ne $request $limit) -}}
{{- fail (printf "resources.limits.memory is %q, but must be given, and be the text of resources.requests.memory, which is %q: a pod that uses more than it asked for is the first to be killed when a node is full. Set both to the same." $limit $request) -}}
{{- end -}}
{{- if and (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) -}}
{{- fail "serviceAccount.name is empty, but must be given with serviceAccount.create false: nothing makes an account of the release's name. Name an account of this namespace, or set create to true." -}}
{{- end -}}
{{- range .Values.extraEnv -}}
{{- if or (eq .name "HOME") (hasPrefix "PADDLE_" .name) -}}
{{- fail (printf "extraEnv has %s, but must have names that neither this chart nor the image sets: the second of two variables of one name wins, unseen. Remove it." .name) -}}
{{- else if eq (hasKey . "value") (hasKey . "valueFrom") -}}
{{- fail (printf "extraEnv %s must have either value or valueFrom: a variable has one value. Give exactly one of them." .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
