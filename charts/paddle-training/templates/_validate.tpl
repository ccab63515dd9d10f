{{/*
What the schema cannot say: checks that span values or ask the cluster, and values that have no default. All faults are
told at once; a check prints one line for each: key, value, limit, reason, mend.
*/}}
{{- define "paddle-training.validate" -}}
{{- $faults := list -}}
{{- range list "names" "ports" "training" "data" "storage" "pods" "env" "cluster" -}}
{{- $found := include (printf "paddle-training.validate.%s" .) $ | trim -}}
{{- if $found -}}{{- $faults = concat $faults (splitList "\n" $found) -}}{{- end -}}
{{- end -}}
{{- with $faults -}}
{{- fail (printf "the values cannot work:\n- %s\n" (join "\n- " .)) -}}
{{- end -}}
{{- end -}}

{{/* One fault. Takes (list key value limit reason mend). */}}
{{- define "paddle-training.fault" -}}
{{- $text := printf "%s is %s, but must be %s: %s. %s." (index . 0) (index . 1 | toJson) (index . 2) (index . 3) (index . 4) -}}
{{- $text | replace "\n" " " }}
{{ end -}}

{{- define "paddle-training.validate.names" -}}
{{- include "paddle-training.validate.helmVersion" .Capabilities.HelmVersion.Version -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" .Release.Name) -}}
{{- include "paddle-training.fault" (list "the release's name" .Release.Name "a DNS label that begins with a letter" "the headless Service is called like it" "Install under another name") -}}
{{- end -}}
{{- if not .Values.image -}}
{{- include "paddle-training.fault" (list "image" .Values.image "an image's name" "there is no public image to fall back to" "Build launcher/Dockerfile, push it, and set image to its name, best with a digest") -}}
{{- end -}}
{{- range $key, $count := dict "gradientNum" (include "paddle-training.gradientNum" .) "data.splitCount" (include "paddle-training.splitCount" .) -}}
{{- if ne $count (toString (int64 $.Values.trainers)) -}}
{{- include "paddle-training.fault" (list $key (int64 $count) (printf "%d, the number of trainers" (int64 $.Values.trainers)) "each trainer is one gradient server and reads one shard" (printf "Leave %s null, or set it to trainers" $key)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "paddle-training.validate.helmVersion" -}}
{{- if semverCompare "<3.14.0-0" . -}}
{{- include "paddle-training.fault" (list "helm" . "3.14 or newer" "older ones lack --reset-then-reuse-values, without which an upgrade by hand mixes old and new values" "Install a newer helm") -}}
{{- end -}}
{{- end -}}

{{/* Ports: port … port+portsNum+portsNumSparse-1 and peerPort. */}}
{{- define "paddle-training.validate.ports" -}}
{{- $first := int64 .Values.port -}}
{{- $last := add $first .Values.portsNum .Values.portsNumSparse -1 -}}
{{- $peer := include "paddle-training.peerPort" . | int64 -}}
{{- $highest := max $last (ternary $peer 0 (kindIs "invalid" .Values.peerPort)) -}}
{{- if gt $highest 65535 -}}
{{- include "paddle-training.fault" (list "port" $first (printf "at most %d" (sub 65535 (sub $highest $first))) (printf "the ports are %d to %d (portsNum %d, portsNumSparse %d, peerPort), and TCP ports end at 65535" $first $highest (int64 .Values.portsNum) (int64 .Values.portsNumSparse)) "Set another port, or fewer ports") -}}
{{- end -}}
{{- if and (eq .Values.runtime "fleet") (lt (int64 .Values.portsNumSparse) 1) -}}
{{- include "paddle-training.fault" (list "portsNumSparse" (int64 .Values.portsNumSparse) "at least 1 with runtime fleet" "rank 0's first sparse port is where the trainers' barriers (gloo) meet" "Set it to 1") -}}
{{- end -}}
{{- if and (ge $peer $first) (le $peer $last) -}}
{{- include "paddle-training.fault" (list "peerPort" $peer (printf "outside %d to %d" $first $last) "those are the parameter servers' ports" "Leave peerPort null, or set another one") -}}
{{- end -}}
{{- if .Values.hostPorts -}}
{{- range $key, $range := dict "port" (list $first $last) "peerPort" (list $peer $peer) -}}
{{- range $taken := list (list 10250 10250 "the kubelet listens there") (list 10256 10256 "kube-proxy listens there") (list 30000 32767 "NodePort Services take those ports of every node") -}}
{{- if and (le (index $range 0 | int64) (index $taken 1 | int64)) (ge (index $range 1 | int64) (index $taken 0 | int64)) -}}
{{- include "paddle-training.fault" (list $key (index $range 0) (printf "such that ports %d to %d stay free with hostPorts" (index $taken 0) (index $taken 1)) (index $taken 2) "Set another port, or hostPorts to false") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "paddle-training.validate.training" -}}
{{- $training := .Values.training -}}
{{- $reserved := list "output" "runs" "tables" "sources" -}}
{{- $folder := include "paddle-training.configDir" . -}}
{{- if or (has $folder $reserved) (regexMatch "^[0-9]+$" $folder) -}}
{{- include "paddle-training.fault" (list "training.config" $training.config (printf "in a folder called other than %s or a number" (join ", " $reserved)) "those folders of a job hold its shards, tables and outputs" "Give the program's folder another name") -}}
{{- end -}}
{{- $managed := list "port" "ports_num" "ports_num_for_sparse" "nics" "pservers" "trainer_id" "trainer_count" "num_gradient_servers" "num_passes" "log_period" "dot_period" "saving_period" "local" "use_gpu" "config" "save_dir" "start_pass" "init_model_path" "comment" -}}
{{- $seen := list -}}
{{- range $training.extraArgs -}}
{{- $flag := regexReplaceAll "^--([^=]*)=.*$" . "${1}" -}}
{{- if has $flag $managed -}}
{{- include "paddle-training.fault" (list "training.extraArgs" . "a flag that no value of this chart sets" (printf "--%s is set by the launcher, and the second one would win unseen" $flag) "Remove it, and set the chart's value of that meaning") -}}
{{- else if has $flag $seen -}}
{{- include "paddle-training.fault" (list "training.extraArgs" . "given once" (printf "--%s is there twice, and only one of them would count" $flag) "Remove one of them") -}}
{{- end -}}
{{- $seen = append $seen $flag -}}
{{- end -}}
{{- $every := pick $training.saveEvery "batches" "minutes" -}}
{{- if and $every.batches $every.minutes -}}
{{- include "paddle-training.fault" (list "training.saveEvery" $every "batches or minutes, not both" "there is one rhythm of saves" "Leave one of them out, or set it to null") -}}
{{- end -}}
{{- if and (eq .Values.runtime "v1") (or $every.batches $every.minutes) -}}
{{- include "paddle-training.fault" (list "training.saveEvery" $every "empty with runtime v1" "paddle train goes on from whole passes only" "Leave it empty: training.savingPeriod counts passes") -}}
{{- end -}}
{{- with $training.deltaSaves -}}
{{- if eq $.Values.runtime "v1" -}}
{{- include "paddle-training.fault" (list "training.deltaSaves" . "0 with runtime v1" "paddle train saves whole passes only" "Leave it out, or set runtime to fleet") -}}
{{- else if eq $training.mode "geo" -}}
{{- include "paddle-training.fault" (list "training.deltaSaves" . "0 with training.mode geo" "there the servers have no tables whose changes they could write, only what trainers exchanged" "Leave it out, or set training.mode to async or sync") -}}
{{- end -}}
{{- end -}}
{{- if and $training.keepBest (eq .Values.runtime "v1") -}}
{{- include "paddle-training.fault" (list "training.keepBest" $training.keepBest "empty with runtime v1" "paddle train tests nothing that the launcher could compare" "Leave it empty, or set runtime to fleet") -}}
{{- end -}}
{{- if and $training.patience (not $training.keepBest) -}}
{{- include "paddle-training.fault" (list "training.patience" $training.patience "0 without training.keepBest" "it counts the passes that do not improve that metric" "Set training.keepBest to a test metric of the program, or leave training.patience out") -}}
{{- end -}}
{{- with $training.initFrom -}}
{{- $own := printf "%s/output" $.Values.jobName -}}
{{- if eq $.Values.runtime "v1" -}}
{{- include "paddle-training.fault" (list "training.initFrom" . "empty with runtime v1" "the old binary begins with its own parameters" "Leave it empty, or set runtime to fleet") -}}
{{- else if hasPrefix (printf "%s/" $own) (printf "%s/" .) -}}
{{- include "paddle-training.fault" (list "training.initFrom" . (printf "outside %s" $own) "this training writes there: it goes on from what lies there, or moves it to runs/" (printf "Name a folder of %s/runs or of another job" $.Values.jobName)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Where the data comes from and how it is cut. */}}
{{- define "paddle-training.validate.data" -}}
{{- $data := .Values.data -}}
{{- $source := $data.source -}}
{{- range $key, $url := dict "data.source" $source "data.testSource" $data.testSource -}}
{{- if regexMatch "^https?://[^/]*@" $url -}}
{{- include "paddle-training.fault" (list $key "(not shown)" "a URL without a name and a password" "values are plain text in the release and in its Jobs" "Use a URL that is signed, or a bucket with pod identity or keys in a Secret (extraEnv)") -}}
{{- end -}}
{{- end -}}
{{- if not $source -}}
{{- include "paddle-training.fault" (list "data.source" $source "https://…, http://…, s3://BUCKET/PREFIX or file://NAME" "there is nothing to train on, and the digest of the data covers it also without the data Job" "Set it; a file in the folder sources/ of the shared storage is file://NAME") -}}
{{- else if and (hasPrefix "http://" $source) (not $data.sha256) -}}
{{- include "paddle-training.fault" (list "data.sha256" $data.sha256 "given with an http source" "anybody on the way could change what it gives" "Set the output of sha256sum, or use https") -}}
{{- else if and (hasPrefix "s3://" $source) $data.member (not (regexMatch "^s3://[^/]+/.*[^/]$" $source)) -}}
{{- include "paddle-training.fault" (list "data.source" $source "s3://BUCKET/KEY of one archive, since data.member is set" "a member lies in exactly one object, and this names a folder" "Name the archive itself, or leave data.member empty to read all text below the prefix") -}}
{{- end -}}
{{- $names := list -}}
{{- range $data.tables -}}
{{- if has (base .) $names -}}
{{- include "paddle-training.fault" (list "data.tables" . "of a file name that no other table has" "all tables lie in one folder" "Remove one of them") -}}
{{- end -}}
{{- $names = append $names (base .) -}}
{{- end -}}
{{- if and (eq $data.format "lines") $data.columns -}}
{{- include "paddle-training.fault" (list "data.columns" $data.columns "empty with data.format lines" "lines are passed on byte for byte, so no column is cut out" "Set data.format to csv, or leave columns empty") -}}
{{- else if and (not $data.header) (regexMatch "\"" (toJson $data.columns)) -}}
{{- include "paddle-training.fault" (list "data.columns" $data.columns "indices from 0 with data.header false" "nothing names the columns then" "Give the columns' indices, or set data.header to true") -}}
{{- end -}}
{{- end -}}

{{/* Each type of storage has what it needs, and no path leads out of where it belongs. */}}
{{- define "paddle-training.validate.storage" -}}
{{- $storage := .Values.storage -}}
{{- range $type, $need := dict
  "efs-csi" (list "efsCsi.fileSystemId" (dig "efsCsi" "fileSystemId" "" $storage) "the id of an EFS file system, fs-…" "Set the id that aws efs describe-file-systems shows, or another storage.type")
  "nfs" (list "nfs.server" (dig "nfs" "server" "" $storage) "a server's name or address" "Set the name that nodes can resolve, such as an EFS mount target's")
  "hostPath" (list "hostPath.path" (dig "hostPath" "path" "" $storage) "an absolute path below /" "Set a folder that exists on every node")
  "existingClaim" (list "existingClaim.name" (dig "existingClaim" "name" "" $storage) "the name of a claim" "Name a claim of this namespace whose access mode is ReadWriteMany") -}}
{{- if and (eq $type $storage.type) (not (index $need 1)) -}}
{{- include "paddle-training.fault" (list (printf "storage.%s" (index $need 0)) (index $need 1) (index $need 2) (printf "storage.type is %s" $type) (index $need 3)) -}}
{{- end -}}
{{- end -}}
{{- $mounts := list -}}
{{- range .Values.extraVolumeMounts -}}{{- $mounts = append $mounts .mountPath -}}{{- end -}}
{{- range $key, $paths := dict
  "jobPath" (list .Values.jobPath) "storage.hostPath.path" (list (dig "hostPath" "path" "" $storage)) "extraVolumeMounts" $mounts
  "data.source" (list .Values.data.source) "data.testSource" (list .Values.data.testSource)
  "data.member" (list .Values.data.member) "data.tables" .Values.data.tables -}}
{{- range $paths -}}
{{- if has ".." (splitList "/" .) -}}
{{- include "paddle-training.fault" (list $key . "a path without '..'" "it would lead out of where it belongs" "Write the path itself") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $key, $paths := dict "jobPath" (list .Values.jobPath) "extraVolumeMounts" $mounts -}}
{{- $taken := ternary (list "/work" "/tmp") (list "/work" "/tmp" $.Values.jobPath) (eq $key "jobPath") -}}
{{- range $path := $paths -}}
{{- range $taken -}}
{{- if hasPrefix (printf "%s/" .) (printf "%s/" $path) -}}
{{- include "paddle-training.fault" (list $key $path (printf "outside %s" .) "the pods have a folder of their own there" "Mount it elsewhere") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "paddle-training.validate.pods" -}}
{{- range $key, $resources := dict "resources" .Values.resources "data.resources" .Values.data.resources -}}
{{- $request := toString $resources.requests.memory -}}
{{- $limit := toString $resources.limits.memory -}}
{{- if ne $request $limit -}}
{{- include "paddle-training.fault" (list (printf "%s.limits.memory" $key) $limit (printf "the text of %s.requests.memory, which is %q" $key $request) "a pod that uses more than it asked for is the first to be killed when a node is full" "Set both to the same") -}}
{{- end -}}
{{- end -}}
{{- range $key, $_ := include "paddle-training.selectorLabels" (dict "root" . "component" "training") | fromYaml -}}
{{- if hasKey $.Values.podLabels $key -}}
{{- include "paddle-training.fault" (list "podLabels" $key "a label that the chart does not set" "Services, policies and the command line find the pods by it" "Give the label another name") -}}
{{- end -}}
{{- end -}}
{{- range .Values.extraVolumes -}}
{{- if has .name (list "jobpath" "work" "tmp") -}}
{{- include "paddle-training.fault" (list "extraVolumes" .name "a name that the pods do not have" "they have volumes jobpath, work and tmp" "Give the volume another name") -}}
{{- end -}}
{{- end -}}
{{- if and .Values.scheduling.queue (not .Values.scheduling.suspend) -}}
{{- include "paddle-training.fault" (list "scheduling.suspend" .Values.scheduling.suspend "true with scheduling.queue" "pods would start before the queue admits them" "Set scheduling.suspend to true; the queue lifts it") -}}
{{- end -}}
{{- if not (or .Values.serviceAccount.create .Values.serviceAccount.name) -}}
{{- include "paddle-training.fault" (list "serviceAccount.name" .Values.serviceAccount.name "given with serviceAccount.create false" "nothing makes an account of the release's name" "Name an account of this namespace, or set create to true") -}}
{{- end -}}
{{- end -}}

{{/* A person's own variables: none that something else sets, each given once, and no secret in plain text. */}}
{{- define "paddle-training.validate.env" -}}
{{- $managed := list "TRAIN_CONFIG_DIR" "TRAINER_COUNT" "TRAINING_ROLE" "OUT_DIR" "SPLIT_COUNT" "POD_IP" "HOME" "PATH" "PYTHONPATH" -}}
{{- if eq .Values.runtime "fleet" -}}
{{- $managed = concat $managed (list "OMP_NUM_THREADS" "MKL_NUM_THREADS" "OPENBLAS_NUM_THREADS") -}}
{{- end -}}
{{- $seen := list -}}
{{- range .Values.extraEnv -}}
{{- $key := printf "extraEnv %s" .name -}}
{{- if or (has .name $managed) (regexMatch "^(JOB|PADDLE|CONF_PADDLE|KUBERNETES)_" .name) -}}
{{- include "paddle-training.fault" (list "extraEnv" .name "a name that neither this chart nor the image sets" "the second of two variables of one name wins, unseen" "Remove it, and set the chart's value of that meaning, if there is one") -}}
{{- else if has .name $seen -}}
{{- include "paddle-training.fault" (list "extraEnv" .name "given once" "of two variables of one name only the last would count" "Remove one of them") -}}
{{- end -}}
{{- $seen = append $seen .name -}}
{{- if eq (hasKey . "value") (hasKey . "valueFrom") -}}
{{- include "paddle-training.fault" (list $key (ternary "value and valueFrom" "" (hasKey . "value")) "either value or valueFrom" "a variable has one value" "Give exactly one of them") -}}
{{- else if and (hasKey . "value") (or (has .name (list "AWS_SECRET_ACCESS_KEY" "AWS_SESSION_TOKEN")) (regexMatch "://[^/@\\s]+:[^/@\\s]+@" .value)) -}}
{{- include "paddle-training.fault" (list $key "(not shown)" "given by valueFrom.secretKeyRef" "it holds a secret, and values are plain text in the release and in its Jobs" "Put it into a Secret of this namespace and name that") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What only the cluster knows. Without one (helm template) look-ups find nothing and nothing is said. */}}
{{- define "paddle-training.validate.cluster" -}}
{{- if eq .Values.storage.type "existingClaim" -}}
{{- $claim := lookup "v1" "PersistentVolumeClaim" .Release.Namespace .Values.storage.existingClaim.name -}}
{{- if and .Values.storage.existingClaim.name $claim -}}
{{- include "paddle-training.validate.claimModes" (list .Values.storage.existingClaim.name $claim.spec.accessModes) -}}
{{- end -}}
{{- end -}}
{{- include "paddle-training.validate.released" (lookup "v1" "PersistentVolume" "" (include "paddle-training.volume" .)) -}}
{{- if .Values.hostPorts -}}
{{- $namespace := lookup "v1" "Namespace" "" .Release.Namespace | default dict -}}
{{- include "paddle-training.validate.podSecurity" (list .Release.Namespace (dig "metadata" "labels" "pod-security.kubernetes.io/enforce" "" $namespace)) -}}
{{- end -}}
{{- end -}}

{{- define "paddle-training.validate.claimModes" -}}
{{- if not (has "ReadWriteMany" (index . 1)) -}}
{{- include "paddle-training.fault" (list "storage.existingClaim.name" (index . 0) "a claim with access mode ReadWriteMany" (printf "pods on several nodes write to it, and this one has %s" (join ", " (index . 1))) "Make a claim of that mode on shared storage, such as EFS or NFS") -}}
{{- end -}}
{{- end -}}

{{- define "paddle-training.validate.podSecurity" -}}
{{- if has (index . 1) (list "baseline" "restricted") -}}
{{- include "paddle-training.fault" (list "hostPorts" true (printf "false in namespace %s" (index . 0)) (printf "its Pod Security level is %s, which refuses pods with host ports" (index . 1)) (printf "Set hostPorts to false, or: kubectl label namespace %s pod-security.kubernetes.io/enforce=privileged --overwrite" (index . 0))) -}}
{{- end -}}
{{- end -}}

{{- define "paddle-training.validate.released" -}}
{{- if eq (dig "status" "phase" "" (. | default dict)) "Released" -}}
{{- include "paddle-training.fault" (list "storage" .metadata.name "a volume that is free" "the claim that it was bound to is gone, and Kubernetes binds it to no other" (printf "kubectl delete pv %s (what lies on the storage stays), and try again" .metadata.name)) -}}
{{- end -}}
{{- end -}}
