{{/*
Names and the digests in them. A Job's pod template cannot be changed, so its name carries a digest of all that is
immutable in it: other values make another Job, the same values change nothing.
*/}}

{{/* Digest (sha256, hex) of what decides the data, and of nothing else: the manifest carries it. */}}
{{- define "paddle-training.dataDigest" -}}
{{- $data := .Values.data -}}
{{- dict
  "jobName" .Values.jobName
  "source" $data.source
  "sha256" (lower $data.sha256)
  "member" $data.member
  "tables" $data.tables
  "format" $data.format
  "delimiter" (include "paddle-training.delimiter" .)
  "header" $data.header
  "columns" $data.columns
  "encoding" $data.encoding
  "seed" ($data.seed | int64)
  "testFraction" (toString $data.testFraction)
  "testSource" $data.testSource
  "testRows" ($data.testRows | int64)
  "splitCount" (include "paddle-training.splitCount" .)
  | toJson | sha256sum -}}
{{- end -}}

{{/* Name of the training Job. The spec is parsed, so that a comment or an order of keys changes nothing. */}}
{{- define "paddle-training.trainingJob" -}}
{{- printf "%s-%s" .Values.jobName (include "paddle-training.trainingSpec" . | fromYaml | toJson | sha256sum | trunc 8) -}}
{{- end -}}

{{/* Name of the data Job. Its pods are told the runId too: a failed one is tried again with the training. */}}
{{- define "paddle-training.dataJob" -}}
{{- printf "%s-data-%s" .Values.jobName (include "paddle-training.dataSpec" . | fromYaml | toJson | sha256sum | trunc 8) -}}
{{- end -}}

{{/* What is the cluster's and not one training's: a file of values over it is a whole training. */}}
{{- define "paddle-training.base" -}}
{{- pick .Values "image" "imagePullPolicy" "imagePullSecrets" "jobPath" "nic" "hostPorts" "rendezvous" "logFormat" "notify" "storage" "extraEnv" "podLabels" "podAnnotations" "extraVolumes" "extraVolumeMounts" "scheduling" "networkPolicy" "podSecurity" "serviceAccount" "ttlSecondsAfterFinished" | toYaml -}}
{{- end -}}

{{/* Name of volume and claim. A volume's source and a claim's volume are immutable and volumes are cluster-wide.
     Namespace and release are in the digest as well: "a-b" + "c" and "a" + "b-c" are two releases. The size is not:
     it limits nothing. */}}
{{- define "paddle-training.volume" -}}
{{- $own := dict
  "efs-csi" .Values.storage.efsCsi "nfs" .Values.storage.nfs "hostPath" .Values.storage.hostPath -}}
{{- $what := dict
  "namespace" .Release.Namespace "release" .Release.Name "type" .Values.storage.type
  "source" (get $own .Values.storage.type) -}}
{{- $prefix := printf "%s-%s" .Release.Namespace .Release.Name | trunc 200 | trimSuffix "-" -}}
{{- printf "%s-%s" $prefix ($what | toJson | sha256sum | trunc 8) -}}
{{- end -}}

{{/* Name of the claim that the pods mount. */}}
{{- define "paddle-training.claim" -}}
{{- if eq .Values.storage.type "existingClaim" -}}
{{- .Values.storage.existingClaim.name -}}
{{- else -}}
{{- include "paddle-training.volume" . -}}
{{- end -}}
{{- end -}}

{{/* What volume and claim state as their size. Kubernetes lets no claim of this kind be changed, so one that is there
     keeps its own. */}}
{{- define "paddle-training.size" -}}
{{- $claim := lookup "v1" "PersistentVolumeClaim" .Release.Namespace (include "paddle-training.volume" .) -}}
{{- dig "spec" "resources" "requests" "storage" .Values.storage.size ($claim | default dict) -}}
{{- end -}}
