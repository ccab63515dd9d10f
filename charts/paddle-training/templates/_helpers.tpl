{{/* Name of the Service, and first part of the other objects' names. The ConfigMap <release>-run keeps the release's name,
     because the command line looks it up by release. */}}
{{- define "paddle-training.fullname" -}}
{{- .Values.fullnameOverride | default .Release.Name -}}
{{- end -}}

{{/* Name of the service account of all pods. */}}
{{- define "paddle-training.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "paddle-training.fullname" .) -}}
{{- end -}}

{{/* Whether training pods talk to the API server: "true" or "false". */}}
{{- define "paddle-training.needsApi" -}}
{{- or (eq .Values.rendezvous "api") .Values.notify.events -}}
{{- end -}}

{{/* Selector labels: they never change during the life of a release. Takes (dict "root" $ "component" "training"). */}}
{{- define "paddle-training.selectorLabels" -}}
app.kubernetes.io/name: paddle-training
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{/* Labels of an object. Pod templates get the selector labels only: a chart version in them would change the
     Jobs' names with every release of the chart. */}}
{{- define "paddle-training.labels" -}}
{{ include "paddle-training.selectorLabels" . }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Label of both Jobs for Kueue, which suspends a Job with it until the queue admits it. The pods do not get it: Kueue
     would queue each of them as well. */}}
{{- define "paddle-training.queueLabel" -}}
{{- with .Values.scheduling.queue -}}
kueue.x-k8s.io/queue-name: {{ . | quote }}
{{- end -}}
{{- end -}}

{{/* Whether the pods run a script of the user, and not a program of the launcher: "true" or "false". */}}
{{- define "paddle-training.isScript" -}}
{{- has .Values.runtime (list "collective" "ps") -}}
{{- end -}}

{{/* Whether a run may go on with fewer trainers, and take in further ones: "true" or "false". */}}
{{- define "paddle-training.isElastic" -}}
{{- lt (.Values.training.minTrainers | default .Values.trainers | int64) (include "paddle-training.maxTrainers" . | int64) -}}
{{- end -}}

{{/* Largest number of trainers of a run, which is its number of shards. */}}
{{- define "paddle-training.maxTrainers" -}}
{{- .Values.training.maxTrainers | default .Values.trainers | int64 -}}
{{- end -}}

{{/* Smallest number of trainers of a run. */}}
{{- define "paddle-training.minTrainers" -}}
{{- .Values.training.minTrainers | default .Values.trainers | int64 -}}
{{- end -}}

{{/* Parameter servers of a script (runtime ps); 0 with other runtimes. */}}
{{- define "paddle-training.servers" -}}
{{- eq .Values.runtime "ps" | ternary (.Values.training.servers | default (include "paddle-training.maxTrainers" .)) 0 | int64 -}}
{{- end -}}

{{/* Trainer processes per pod: training.processesPerPod, else with GPUs one for each, else 1. */}}
{{- define "paddle-training.processesPerPod" -}}
{{- .Values.training.processesPerPod | default (include "paddle-training.gpus" .) | int64 | max 1 -}}
{{- end -}}

{{/* The resources of a training pod that are GPUs or shares of one, as a JSON list of names: every name with "gpu", and
     nvidia.com/mig-…, whose number is not 0. Also those that stand in resources.requests only. */}}
{{- define "paddle-training.gpuResources" -}}
{{- $names := list -}}
{{- range $name, $number := merge (dict) .Values.resources.limits .Values.resources.requests -}}
{{- if and (regexMatch "gpu|/mig-" $name) (ne (toString $number) "0") -}}{{- $names = append $names $name -}}{{- end -}}
{{- end -}}
{{- $names | sortAlpha | toJson -}}
{{- end -}}

{{/* Whether a resource counts GPUs (nvidia.com/gpu, nvidia.com/gpu.shared, nvidia.com/gpu-a100, nvidia.com/mig-…), not memory
     or cores of one GPU (aliyun.com/gpu-mem): "true" or "false". Takes the name. */}}
{{- define "paddle-training.countsGpus" -}}
{{- regexMatch "(/(v?gpu(-number|-count|[-._][A-Za-z]*[0-9][A-Za-z0-9-]*)?|mig-[^/]+)(\\.shared)?|^gpu\\.intel\\.com/(i915|xe))$" . -}}
{{- end -}}

{{/* GPUs per training pod; a share of a GPU's memory is one. */}}
{{- define "paddle-training.gpus" -}}
{{- $count := 0 -}}
{{- $least := 0 -}}
{{- range include "paddle-training.gpuResources" . | fromJsonArray -}}
{{- $number := index $.Values.resources.limits . | default 0 | int64 -}}
{{- if $number -}}{{- $least = 1 -}}{{- end -}}
{{- if eq (include "paddle-training.countsGpus" .) "true" -}}{{- $count = add $count $number -}}{{- end -}}
{{- end -}}
{{- max $count $least -}}
{{- end -}}

{{/* Whether a training pod mounts its own /dev/shm: "true" or "false". With runtime collective and GPUs also by default,
     unless extraVolumeMounts has one: the container runtime's 64 MiB are too small for NCCL and data-loader workers. */}}
{{- define "paddle-training.ownSharedMemory" -}}
{{- $byDefault := and (eq .Values.runtime "collective") (ne (include "paddle-training.gpus" .) "0") -}}
{{- range .Values.extraVolumeMounts -}}
{{- if eq (trimSuffix "/" .mountPath) "/dev/shm" -}}{{- $byDefault = false -}}{{- end -}}
{{- end -}}
{{- or (ne .Values.training.sharedMemory "") $byDefault -}}
{{- end -}}

{{/* A quantity such as 512Mi or 2G in bytes, as a number with decimals. Takes the text or number. */}}
{{- define "paddle-training.bytes" -}}
{{- $text := toString . -}}
{{- $suffix := regexFind "[A-Za-z]i?$" $text -}}
{{- $factors := dict "m" 1e-3 "" 1.0 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 -}}
{{- mulf (trimSuffix $suffix $text | float64) (get $factors $suffix) -}}
{{- end -}}

{{/* Number of dense ports; with a script one for each process, and for each of its servers in the pod with the most. */}}
{{- define "paddle-training.portsNum" -}}
{{- if eq (include "paddle-training.isScript" .) "true" -}}
{{- $servers := divf (include "paddle-training.servers" . | float64) (include "paddle-training.minTrainers" .) | ceil | int64 -}}
{{- add (include "paddle-training.processesPerPod" .) $servers -}}
{{- else }}{{ .Values.portsNum | int64 }}{{ end -}}
{{- end -}}

{{/* Number of sparse ports; with a script one, on which its processes find each other. */}}
{{- define "paddle-training.portsNumSparse" -}}
{{- ternary 1 .Values.portsNumSparse (eq (include "paddle-training.isScript" .) "true") | int64 -}}
{{- end -}}

{{/* Whether the training pods read data that the launcher prepared: "true", or "false" for a script that reads its own. */}}
{{- define "paddle-training.readsData" -}}
{{- or (ne (include "paddle-training.isScript" .) "true") .Values.data.enabled (ne .Values.data.source "") (ne .Values.data.sourceSecret.name "") -}}
{{- end -}}

{{/* peerPort; by default the first port after the dense and sparse ones. */}}
{{- define "paddle-training.peerPort" -}}
{{- if kindIs "invalid" .Values.peerPort -}}
{{- add .Values.port (include "paddle-training.portsNum" .) (include "paddle-training.portsNumSparse" .) -}}
{{- else -}}
{{- .Values.peerPort | int64 -}}
{{- end -}}
{{- end -}}

{{/* Number of gradient servers: null means one per trainer. */}}
{{- define "paddle-training.gradientNum" -}}
{{- .Values.gradientNum | default (include "paddle-training.maxTrainers" .) | int64 -}}
{{- end -}}

{{/* Number of shards: null means one per trainer. */}}
{{- define "paddle-training.splitCount" -}}
{{- .Values.data.splitCount | default (include "paddle-training.maxTrainers" .) | int64 -}}
{{- end -}}

{{/* The program's folder: training.config up to the "/". */}}
{{- define "paddle-training.configDir" -}}
{{- (splitList "/" .Values.training.config) | first -}}
{{- end -}}

{{/* The program's file: training.config after the "/". */}}
{{- define "paddle-training.configFile" -}}
{{- $parts := splitList "/" .Values.training.config -}}
{{- if gt (len $parts) 1 -}}{{ index $parts 1 }}{{- else -}}trainer_config.py{{- end -}}
{{- end -}}

{{/* The delimiter; a tab character becomes a backslash and a t in pods and digests. */}}
{{- define "paddle-training.delimiter" -}}
{{- .Values.data.delimiter | replace "\t" "\\t" -}}
{{- end -}}
