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
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" .Release.Name) -}}
{{- fail (printf "the release's name is %q, but must be a DNS label that begins with a letter: the Service gets the same name. Fix: Install under another name." .Release.Name) -}}
{{- end -}}
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
{{- with .Values.autoscaling -}}
{{- if and .enabled (gt (int64 .minReplicas) (int64 .maxReplicas)) -}}
{{- fail (printf "autoscaling.minReplicas is %d, but must be at most autoscaling.maxReplicas, which is %d: Kubernetes rejects such an autoscaler. Fix: Set a lower minReplicas or a higher maxReplicas." (int64 .minReplicas) (int64 .maxReplicas)) -}}
{{- else if and .enabled (not (dig "requests" "cpu" "" $.Values.resources)) -}}
{{- fail "resources.requests.cpu is empty, but must be given with autoscaling.enabled: the autoscaler compares the pods' use with it. Fix: Set it to the cores that one pod needs." -}}
{{- end -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.hosts) -}}
{{- fail "ingress.hosts is [], but must be given with ingress.enabled: a rule without a host would take the requests of all other hosts. Fix: Set it to the names under which clients reach the model." -}}
{{- end -}}
{{- if and .Values.httpRoute.enabled (not .Values.httpRoute.parentRefs) -}}
{{- fail "httpRoute.parentRefs is [], but must be given with httpRoute.enabled: a route without a Gateway has no effect. Fix: Set it to your Gateway, such as [{name: public, namespace: gateways}]." -}}
{{- end -}}
{{- if and (or .Values.ingress.enabled .Values.httpRoute.enabled) .Values.networkPolicy.enabled (not .Values.networkPolicy.from) -}}
{{- fail "networkPolicy.from is [], but must be given with ingress.enabled or httpRoute.enabled: the NetworkPolicy would reject the proxy, which usually runs in another namespace. Fix: Set it to the proxy's pods, such as [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ingress-nginx}}}]." -}}
{{- end -}}
{{- if and (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) -}}
{{- fail "serviceAccount.name is empty, but must be given with serviceAccount.create false: the chart creates no service account then. Fix: Set it to a service account in this namespace, or set serviceAccount.create to true." -}}
{{- end -}}
{{- range .Values.networkPolicy.s3Cidrs -}}
{{- if has . (list "169.254.169.254/32" "fd00:ec2::254/128") -}}
{{- fail (printf "networkPolicy.s3Cidrs has %s, but must not consist of the nodes' metadata service: it returns the credentials of the node's role. Fix: Remove this network; pods get AWS credentials by pod identity." .) -}}
{{- end -}}
{{- end -}}
{{- range .Values.extraEnv -}}
{{- if or (eq .name "HOME") (hasPrefix "PADDLE_" .name) -}}
{{- fail (printf "extraEnv has %s, but must have names that neither this chart nor the image sets: of two variables with one name the second silently overrides the first. Fix: Remove it." .name) -}}
{{- else if eq (hasKey . "value") (hasKey . "valueFrom") -}}
{{- fail (printf "extraEnv %s must have either value or valueFrom: a variable has one value. Fix: Set exactly one of them." .name) -}}
{{- else if and (hasKey . "value") (eq (include "paddle.isSecret" (list .name .value)) "true") -}}
{{- fail (printf "extraEnv %s must be given by valueFrom.secretKeyRef: it contains a secret, and values are plain text in the release and in the Deployment. Fix: Put it into a Secret in this namespace and refer to that." .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
