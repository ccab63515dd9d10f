{{/* What a training pod is told besides. Takes (dict "root" $). */}}
{{- define "paddle-training.trainingEnv" -}}
{{- $v := .root.Values -}}
{{- range $name, $value := dict
  "TRAIN_CONFIG_DIR" (include "paddle-training.configDir" .root)
  "PADDLE_LAUNCHER_CONFIG_FILE" (include "paddle-training.configFile" .root)
  "CONF_PADDLE_NIC" $v.nic
  "CONF_PADDLE_PORT" (int64 $v.port)
  "CONF_PADDLE_PORTS_NUM" (int64 $v.portsNum)
  "CONF_PADDLE_PORTS_NUM_SPARSE" (int64 $v.portsNumSparse)
  "CONF_PADDLE_GRADIENT_NUM" (include "paddle-training.gradientNum" .root)
  "TRAINER_COUNT" (int64 $v.trainerCount)
  "PADDLE_LAUNCHER_TRAINERS" (int64 $v.trainers)
  "PADDLE_LAUNCHER_SERVICE" .root.Release.Name
  "PADDLE_LAUNCHER_RUN_ID" $v.runId
  "PADDLE_LAUNCHER_RUNTIME" $v.runtime
  "PADDLE_LAUNCHER_RENDEZVOUS" $v.rendezvous
  "PADDLE_LAUNCHER_RENDEZVOUS_SECONDS" (int64 $v.rendezvousSeconds)
  "PADDLE_LAUNCHER_PEER_PORT" (include "paddle-training.peerPort" .root)
  "PADDLE_LAUNCHER_MODE" $v.training.mode
  "PADDLE_LAUNCHER_PASSES" (int64 $v.training.passes)
  "PADDLE_LAUNCHER_BATCH_SIZE" (int64 $v.training.batchSize)
  "PADDLE_LAUNCHER_LOG_PERIOD" (int64 $v.training.logPeriod)
  "PADDLE_LAUNCHER_DOT_PERIOD" (int64 $v.training.dotPeriod)
  "PADDLE_LAUNCHER_SAVING_PERIOD" (int64 $v.training.savingPeriod)
  "PADDLE_LAUNCHER_EXTRA_ARGS" (toJson $v.training.extraArgs)
  "PADDLE_LAUNCHER_RESTARTS" (int64 $v.training.restarts)
  "PADDLE_LAUNCHER_EXPORT_TO" $v.training.exportTo
  "PADDLE_LAUNCHER_DATA_WAIT_SECONDS" (int64 $v.data.waitSeconds)
  "PADDLE_LAUNCHER_WORK_DIR" "/work" }}
- name: {{ $name }}
  value: {{ $value | toString | quote }}
{{- end }}
{{- end -}}

{{/* Ports of a training pod: dense, sparse, the launchers' own. */}}
{{- define "paddle-training.ports" -}}
{{- $root := . -}}
{{- range $i := until (int .Values.portsNum) }}
{{- $port := add $root.Values.port $i }}
- {name: pserver-{{ $i }}, containerPort: {{ $port }}, protocol: TCP{{ if $root.Values.hostPorts }}, hostPort: {{ $port }}{{ end }}}
{{- end }}
{{- range $i := until (int .Values.portsNumSparse) }}
{{- $port := add $root.Values.port $root.Values.portsNum $i }}
- {name: sparse-{{ $i }}, containerPort: {{ $port }}, protocol: TCP{{ if $root.Values.hostPorts }}, hostPort: {{ $port }}{{ end }}}
{{- end }}
{{- $port := include "paddle-training.peerPort" . }}
- {name: peers, containerPort: {{ $port }}, protocol: TCP{{ if .Values.hostPorts }}, hostPort: {{ $port }}{{ end }}}
{{- end -}}

{{/* Spread over nodes: wished for, and with hostPorts required, since two pods cannot have one node's port. */}}
{{- define "paddle-training.placement" -}}
{{- $selector := dict "matchLabels" (include "paddle-training.selectorLabels" (dict "root" . "component" "training") | fromYaml) -}}
{{- $affinity := deepCopy .Values.scheduling.affinity -}}
{{- if .Values.hostPorts -}}
{{- $anti := $affinity.podAntiAffinity | default dict -}}
{{- $term := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" $selector -}}
{{- $key := "requiredDuringSchedulingIgnoredDuringExecution" -}}
{{- $_ := set $anti $key (append (get $anti $key | default list) $term) -}}
{{- $_ := set $affinity "podAntiAffinity" $anti -}}
{{- end -}}
{{- with $affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- if not .Values.hostPorts }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector: {{- toYaml $selector | nindent 6 }}
{{- end }}
{{- with .Values.scheduling.schedulerName }}
schedulerName: {{ . | quote }}
{{- end }}
{{- end -}}
