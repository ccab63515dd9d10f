{{/* Environment of a training pod, in addition to commonEnv: the variables of the tutorial of 2017, what only the pod knows,
     and what comes from a Secret. */}}
{{- define "paddle-training.trainingEnv" -}}
{{- range $name, $value := dict
  "TRAIN_CONFIG_DIR" (include "paddle-training.configDir" .)
  "CONF_PADDLE_NIC" .Values.nic
  "CONF_PADDLE_PORT" (int64 .Values.port)
  "CONF_PADDLE_PORTS_NUM" (include "paddle-training.portsNum" .)
  "CONF_PADDLE_PORTS_NUM_SPARSE" (include "paddle-training.portsNumSparse" .)
  "CONF_PADDLE_GRADIENT_NUM" (include "paddle-training.gradientNum" .)
  "TRAINER_COUNT" (int64 .Values.trainerCount) }}
- name: {{ $name }}
  value: {{ $value | toString | quote }}
{{- end }}
{{- if eq (include "paddle-training.isElastic" .) "true" }}
- name: PADDLE_LAUNCHER_TRAINERS
  valueFrom: {configMapKeyRef: {name: {{ .Release.Name }}-run, key: trainers}}
{{- end }}
{{- if .Values.workDir.sizeLimit }}
- name: PADDLE_LAUNCHER_WORK_LIMIT_BYTES
  valueFrom: {resourceFieldRef: {resource: limits.ephemeral-storage}}
{{- end }}
{{- with .Values.notify.webhook }}
{{- if .secretName }}
- name: PADDLE_LAUNCHER_WEBHOOK
  valueFrom: {secretKeyRef: {name: {{ .secretName | quote }}, key: {{ .key | quote }}, optional: false}}
{{- end }}
{{- end }}
{{- end -}}

{{/* Annotations that keep autoscalers from evicting a training pod: each eviction costs all pods the work since the newest
     checkpoint. podAnnotations override them. */}}
{{- define "paddle-training.stayAnnotations" -}}
cluster-autoscaler.kubernetes.io/safe-to-evict: "false"
karpenter.sh/do-not-disrupt: "true"
{{- end -}}

{{/* Requests and limits of a training pod. workDir.sizeLimit is also its ephemeral-storage, unless resources has one. */}}
{{- define "paddle-training.trainingResources" -}}
{{- $disk := dict -}}
{{- with .Values.workDir.sizeLimit -}}{{- $disk = dict "ephemeral-storage" . -}}{{- end -}}
{{- $parts := dict "requests" $disk "limits" $disk -}}
{{- include "paddle-training.resources" (merge (deepCopy .Values.resources) $parts) -}}
{{- end -}}

{{/* A port of rank 0 on which a process without authentication listens while it trains: its first parameter server; with
     runtime collective the master of its processes. */}}
{{- define "paddle-training.serverPort" -}}
{{- if eq .Values.runtime "collective" }}{{ add .Values.port (include "paddle-training.portsNum" .) }}{{ else }}{{ .Values.port | int64 }}{{ end -}}
{{- end -}}

{{/* Ports of a training pod: dense, sparse, and peerPort. */}}
{{- define "paddle-training.ports" -}}
{{- $root := . -}}
{{- $isScript := eq (include "paddle-training.isScript" .) "true" -}}
{{- $dense := include "paddle-training.portsNum" . -}}
{{- range $i := until (int $dense) }}
{{- $port := add $root.Values.port $i }}
- {name: {{ ternary "process" "pserver" $isScript }}-{{ $i }}, containerPort: {{ $port }}, protocol: TCP{{ if $root.Values.hostPorts }}, hostPort: {{ $port }}{{ end }}}
{{- end }}
{{- range $i := until (include "paddle-training.portsNumSparse" . | int) }}
{{- $port := add $root.Values.port $dense $i }}
- {name: {{ ternary "master" "sparse" $isScript }}-{{ $i }}, containerPort: {{ $port }}, protocol: TCP{{ if $root.Values.hostPorts }}, hostPort: {{ $port }}{{ end }}}
{{- end }}
{{- $port := include "paddle-training.peerPort" . }}
- {name: peers, containerPort: {{ $port }}, protocol: TCP{{ if .Values.hostPorts }}, hostPort: {{ $port }}{{ end }}}
{{- end -}}

{{/* Tolerations of a training pod: the user's, and 30 s for a lost node (Kubernetes' default is 300 s) unless the user
     sets one for it. As in Kubernetes, a toleration without a key or an effect matches all of them. A pod with GPUs also
     tolerates the taint with the name of the resource (and nvidia.com/gpu with all of NVIDIA's), by which clusters keep
     other pods from these nodes, unless the user sets a toleration for it. The admission plugin
     ExtendedResourceToleration adds it too, but not every cluster has it. */}}
{{- define "paddle-training.trainingTolerations" -}}
{{- $all := .Values.scheduling.tolerations -}}
{{- range $taint := list "node.kubernetes.io/not-ready" "node.kubernetes.io/unreachable" -}}
{{- $given := false -}}
{{- range $.Values.scheduling.tolerations -}}
{{- if and (has (.key | default $taint) (list $taint)) (has (.effect | default "NoExecute") (list "NoExecute")) -}}
{{- $given = true -}}
{{- end -}}
{{- end -}}
{{- if not $given -}}
{{- $all = append $all (dict "key" $taint "operator" "Exists" "effect" "NoExecute" "tolerationSeconds" 30) -}}
{{- end -}}
{{- end -}}
{{- $gpus := include "paddle-training.gpuResources" . | fromJsonArray -}}
{{- if contains "nvidia.com/" (toString $gpus) -}}{{- $gpus = append $gpus "nvidia.com/gpu" -}}{{- end -}}
{{- range $gpu := uniq $gpus -}}
{{- $given := false -}}
{{- range $.Values.scheduling.tolerations -}}
{{- if or (eq (.key | default "") $gpu) (and (not .key) (has (.effect | default "NoSchedule") (list "NoSchedule"))) -}}
{{- $given = true -}}
{{- end -}}
{{- end -}}
{{- if not $given -}}
{{- $all = append $all (dict "key" $gpu "operator" "Exists") -}}
{{- end -}}
{{- end -}}
{{- with $all }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Placement of training pods: by default they prefer different nodes; only host ports require it. A constraint without
     labelSelector counts this release's training pods. */}}
{{- define "paddle-training.placement" -}}
{{- with .Values.scheduling.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- $hosts := dict "maxSkew" 1 "topologyKey" "kubernetes.io/hostname" "whenUnsatisfiable" "ScheduleAnyway" -}}
{{- $pods := dict "matchLabels" (include "paddle-training.selectorLabels" (dict "root" . "component" "training") | fromYaml) }}
topologySpreadConstraints:
{{- range .Values.scheduling.topologySpreadConstraints | default (list $hosts) }}
  - {{- hasKey . "labelSelector" | ternary . (merge (dict "labelSelector" $pods) .) | toYaml | nindent 4 }}
{{- end }}
{{- with .Values.scheduling.schedulerName }}
schedulerName: {{ . | quote }}
{{- end }}
{{- end -}}
