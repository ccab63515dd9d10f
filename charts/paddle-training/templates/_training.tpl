{{/* Environment of a training pod, in addition to commonEnv. */}}
{{- define "paddle-training.trainingEnv" -}}
{{- $v := .Values -}}
{{- $batches := int64 ($v.training.checkpointEvery.batches | default 0) -}}
{{- $minutes := or (ne $batches 0) (eq $v.runtime "v1") | ternary 0 ($v.training.checkpointEvery.minutes | default 0) -}}
{{- range $name, $value := dict
  "TRAIN_CONFIG_DIR" (include "paddle-training.configDir" .)
  "PADDLE_LAUNCHER_CONFIG_FILE" (include "paddle-training.configFile" .)
  "CONF_PADDLE_NIC" $v.nic
  "CONF_PADDLE_PORT" (int64 $v.port)
  "CONF_PADDLE_PORTS_NUM" (include "paddle-training.portsNum" .)
  "CONF_PADDLE_PORTS_NUM_SPARSE" (include "paddle-training.portsNumSparse" .)
  "CONF_PADDLE_GRADIENT_NUM" (include "paddle-training.gradientNum" .)
  "TRAINER_COUNT" (int64 $v.trainerCount)
  "PADDLE_LAUNCHER_TRAINERS" (int64 $v.trainers)
  "PADDLE_LAUNCHER_SERVICE" (include "paddle-training.fullname" .)
  "PADDLE_LAUNCHER_START_FROM_SCRATCH" $v.startFromScratch
  "PADDLE_LAUNCHER_PROGRAM_SHA256" $v.training.programSha256
  "PADDLE_LAUNCHER_RUNTIME" $v.runtime
  "PADDLE_LAUNCHER_RENDEZVOUS" $v.rendezvous
  "PADDLE_LAUNCHER_RENDEZVOUS_SECONDS" (int64 $v.rendezvousSeconds)
  "PADDLE_LAUNCHER_PEER_PORT" (include "paddle-training.peerPort" .)
  "PADDLE_LAUNCHER_MODE" $v.training.mode
  "PADDLE_LAUNCHER_PASSES" (int64 $v.training.passes)
  "PADDLE_LAUNCHER_BATCH_SIZE" (int64 $v.training.batchSize)
  "PADDLE_LAUNCHER_LOG_PERIOD" (int64 $v.training.logPeriod)
  "PADDLE_LAUNCHER_DOT_PERIOD" (int64 $v.training.dotPeriod)
  "PADDLE_LAUNCHER_SAVING_PERIOD" (int64 $v.training.savingPeriod)
  "PADDLE_LAUNCHER_CHECKPOINT_EVERY_BATCHES" $batches
  "PADDLE_LAUNCHER_CHECKPOINT_EVERY_MINUTES" $minutes
  "PADDLE_LAUNCHER_KEEP_CHECKPOINTS" (int64 $v.training.keepCheckpoints)
  "PADDLE_LAUNCHER_INIT_MODEL_PATH" $v.training.initModelPath
  "PADDLE_LAUNCHER_PROGRESS_DEADLINE_SECONDS" (int64 $v.training.progressDeadlineSeconds)
  "PADDLE_LAUNCHER_EXTRA_ARGS" (toJson $v.training.extraArgs)
  "PADDLE_LAUNCHER_RESTARTS" (int64 $v.training.restarts)
  "PADDLE_LAUNCHER_GRACE_SECONDS" (int64 $v.training.terminationGracePeriodSeconds)
  "PADDLE_LAUNCHER_EXPORT_TO" $v.training.exportTo
  "PADDLE_LAUNCHER_DATA_WAIT_SECONDS" (int64 $v.data.waitSeconds)
  "PADDLE_LAUNCHER_EVENTS" $v.notify.events
  "PADDLE_LAUNCHER_WORK_DIR" "/work" }}
- name: {{ $name }}
  value: {{ $value | toString | quote }}
{{- end }}
{{- /* Set only when used: an additional variable would rename every Job. */}}
{{- $isScript := eq $v.runtime "collective" -}}
{{- $source := include "paddle-training.sourceValues" . | sha256sum -}}
{{- if $v.training.schedule }}
{{- /* Each Job of a schedule is a training of its own, as with the data digest: without this the second one would find
       the first one's output complete, and train nothing. */}}
{{- $source = print $source "-$(PADDLE_LAUNCHER_K8S_JOB)" -}}
{{- end }}
{{- range $name, $value := dict
  "PADDLE_LAUNCHER_PROCESSES_PER_POD" (ternary (include "paddle-training.processesPerPod" .) "" $isScript)
  "PADDLE_LAUNCHER_SOURCE_DIGEST" (ternary $source "" $isScript)
  "PADDLE_LAUNCHER_GPUS_PER_POD" (ternary (include "paddle-training.gpus" . | int64) 0 $isScript)
  "PADDLE_LAUNCHER_INCREMENTAL_CHECKPOINTS" (int64 $v.training.incrementalCheckpoints)
  "PADDLE_LAUNCHER_KEEP_BEST" $v.training.keepBest
  "PADDLE_LAUNCHER_PATIENCE" (int64 $v.training.patience) }}
{{- with $value }}
- name: {{ $name }}
  value: {{ . | toString | quote }}
{{- end }}
{{- end }}
{{- if not (kindIs "invalid" $v.training.rankWaitHours) }}
- name: PADDLE_LAUNCHER_RANK_WAIT_HOURS
  value: {{ $v.training.rankWaitHours | toString | quote }}
{{- end }}
{{- if $v.workDir.sizeLimit }}
- name: PADDLE_LAUNCHER_WORK_LIMIT_BYTES
  valueFrom: {resourceFieldRef: {resource: limits.ephemeral-storage}}
{{- end }}
- name: PADDLE_LAUNCHER_WEBHOOK
{{- with $v.notify.webhook }}
{{- if .secretName }}
  valueFrom: {secretKeyRef: {name: {{ .secretName | quote }}, key: {{ .key | quote }}, optional: false}}
{{- else }}
  value: ""
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
{{- $isScript := eq .Values.runtime "collective" -}}
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
