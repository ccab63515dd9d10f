{{/*
Checks that span values, or need a better message than a schema gives. All faults are told at once. A check prints one
line for each fault: key, value, limit, reason, mend.
*/}}
{{- define "paddle-training.validate" -}}
{{- $faults := list -}}
{{- range list "helm" "job" "ports" "training" "data" "storage" "pods" "env" "cluster" -}}
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

{{- define "paddle-training.validate.helm" -}}
{{- include "paddle-training.validate.helmVersion" .Capabilities.HelmVersion.Version -}}
{{- end -}}

{{- define "paddle-training.validate.helmVersion" -}}
{{- if semverCompare "<3.14.0-0" . -}}
{{- include "paddle-training.fault" (list "helm" . "3.14 or newer" "older ones lack --reset-then-reuse-values, without which an upgrade by hand mixes old and new values" "Install a newer helm") -}}
{{- end -}}
{{- end -}}

{{- define "paddle-training.validate.job" -}}
{{- $label := "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$" -}}
{{- if or (gt (len .Values.jobName) 45) (not (regexMatch $label .Values.jobName)) -}}
{{- include "paddle-training.fault" (list "jobName" .Values.jobName "a DNS label of at most 45 characters (a-z, 0-9 and -, no - at either end)" "the Jobs' and pods' names are made of it and must stay below 64 characters" "Give a shorter or plainer name") -}}
{{- end -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" .Release.Name) -}}
{{- include "paddle-training.fault" (list "the release's name" .Release.Name "a DNS label that begins with a letter" "the headless Service is called like it" "Install under another name") -}}
{{- end -}}
{{- if not (trim .Values.image) -}}
{{- include "paddle-training.fault" (list "image" .Values.image "an image's name" "there is no public image to fall back to" "Build launcher/Dockerfile, push it, and set image to its name, best with a digest") -}}
{{- else if regexMatch "\\s" .Values.image -}}
{{- include "paddle-training.fault" (list "image" .Values.image "an image's name without spaces" "nodes could not pull it" "Remove the spaces") -}}
{{- end -}}
{{- if or (lt (int64 .Values.trainers) 1) (gt (int64 .Values.trainers) 1000) -}}
{{- include "paddle-training.fault" (list "trainers" (int64 .Values.trainers) "1 to 1000" "a training needs at least one pod, and the parameter servers keep a connection to each" "Set trainers to the number of training pods") -}}
{{- end -}}
{{- $gradient := include "paddle-training.gradientNum" . -}}
{{- if ne $gradient (toString (int64 .Values.trainers)) -}}
{{- include "paddle-training.fault" (list "gradientNum" (int64 $gradient) (printf "trainers, which is %d," (int64 .Values.trainers)) "each trainer is one gradient server, and the parameter servers wait for exactly so many, for ever" "Leave gradientNum null, or set it to trainers") -}}
{{- end -}}
{{- end -}}

{{- define "paddle-training.validate.training" -}}
{{- $reserved := list "output" "runs" "tables" "sources" -}}
{{- $name := "[A-Za-z0-9][A-Za-z0-9._-]*" -}}
{{- if not (regexMatch (printf "^%s(/%s)?$" $name $name) .Values.training.config) -}}
{{- include "paddle-training.fault" (list "training.config" .Values.training.config "FOLDER/FILE, or FOLDER alone for its trainer_config.py" "it names one folder of programs and one file in it" "Write for instance quick_start/trainer_config.py") -}}
{{- else if or (has (include "paddle-training.configDir" .) $reserved) (regexMatch "^[0-9]+$" (include "paddle-training.configDir" .)) -}}
{{- include "paddle-training.fault" (list "training.config" .Values.training.config (printf "in a folder called other than %s or a number" (join ", " $reserved)) "those folders of a job hold its shards, tables and outputs" "Give the program's folder another name") -}}
{{- end -}}
{{- $managed := list "port" "ports_num" "ports_num_for_sparse" "nics" "pservers" "trainer_id" "trainer_count" "num_gradient_servers" "num_passes" "log_period" "dot_period" "saving_period" "local" "use_gpu" "config" "save_dir" "start_pass" "init_model_path" "comment" -}}
{{- $seen := list -}}
{{- range .Values.training.extraArgs -}}
{{- $flag := regexReplaceAll "^--([^=]*)=?.*$" . "${1}" -}}
{{- if not (regexMatch "^--[A-Za-z][A-Za-z0-9_.-]*=" .) -}}
{{- include "paddle-training.fault" (list "training.extraArgs" . "of the form --key=value" "an argument without its value would shift all later ones" "Write it as one item, --key=value") -}}
{{- else if has $flag $managed -}}
{{- include "paddle-training.fault" (list "training.extraArgs" . "a flag that no value of this chart sets" (printf "--%s is set by the launcher, and the second one would win unseen" $flag) "Remove it, and set the chart's value of that meaning") -}}
{{- else if has $flag $seen -}}
{{- include "paddle-training.fault" (list "training.extraArgs" . "given once" (printf "--%s is there twice, and only one of them would count" $flag) "Remove one of them") -}}
{{- end -}}
{{- $seen = append $seen $flag -}}
{{- end -}}
{{- $every := .Values.training.saveEvery -}}
{{- if and $every.batches $every.minutes -}}
{{- include "paddle-training.fault" (list "training.saveEvery" (pick $every "batches" "minutes") "batches or minutes, not both" "there is one rhythm of saves" "Leave one of them out, or set it to null") -}}
{{- end -}}
{{- if and (eq .Values.runtime "v1") (or $every.batches $every.minutes) -}}
{{- include "paddle-training.fault" (list "training.saveEvery" (pick $every "batches" "minutes") "empty with runtime v1" "paddle train goes on from whole passes only" "Leave it empty: training.savingPeriod counts passes") -}}
{{- end -}}
{{- if lt (int64 .Values.training.stallSeconds) 10 -}}
{{- include "paddle-training.fault" (list "training.stallSeconds" (int64 .Values.training.stallSeconds) "at least 10" "a slow batch is no hang, and the look for hangs cannot be turned off: a run that never advances would hold its machines until its deadline" "Set it to some times the slowest batch's seconds") -}}
{{- end -}}
{{- if and (eq .Values.runtime "v1") .Values.training.initFrom -}}
{{- include "paddle-training.fault" (list "training.initFrom" .Values.training.initFrom "empty with runtime v1" "the old binary begins with its own parameters" "Leave it empty, or set runtime to fleet") -}}
{{- end -}}
{{- with .Values.training.initFrom -}}
{{- $limit := "a run's folder on the storage such as JOB/output or JOB/runs/RUN, s3://BUCKET/PREFIX, or empty" -}}
{{- $own := printf "%s/output" $.Values.jobName -}}
{{- if not (regexMatch "^(s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9_=+@,:!~-][^/\\s\\\\]*)+/?|[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*/?)$" .) -}}
{{- include "paddle-training.fault" (list "training.initFrom" . $limit "it names one run, without '/' in front and without '..'" "Name the folder as it lies below the shared storage's root, or the run's folder of an export") -}}
{{- else if hasPrefix (printf "%s/" $own) (printf "%s/" .) -}}
{{- include "paddle-training.fault" (list "training.initFrom" . (printf "outside %s" $own) "this training writes there: it goes on from what lies there, or moves it to runs/" (printf "Name a folder of %s/runs or of another job" $.Values.jobName)) -}}
{{- end -}}
{{- end -}}
{{- with .Values.training.exportTo -}}
{{- $parts := trimPrefix "s3://" . | trimSuffix "/" | splitList "/" -}}
{{- if or (not (regexMatch "^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^\\s\\\\]{0,500})?$" .)) (has "" $parts) (has "." $parts) (has ".." $parts) -}}
{{- include "paddle-training.fault" (list "training.exportTo" . "s3://BUCKET/PREFIX, or empty" "the launcher can write to nothing else" "Leave it empty: the model is on the shared storage anyway") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "paddle-training.validate.pods" -}}
{{- range $key, $resources := dict "resources" .Values.resources "data.resources" .Values.data.resources -}}
{{- $request := dig "requests" "memory" "" $resources | toString -}}
{{- $limit := dig "limits" "memory" "" $resources | toString -}}
{{- if or (not $request) (ne $request $limit) -}}
{{- include "paddle-training.fault" (list (printf "%s.limits.memory" $key) $limit (printf "given, and the text of %s.requests.memory, which is %q," $key $request) "a pod that uses more than it asked for is the first to be killed when a node is full" "Set both to the same") -}}
{{- end -}}
{{- end -}}
{{- if and .Values.scheduling.queue (not .Values.scheduling.suspend) -}}
{{- include "paddle-training.fault" (list "scheduling.suspend" .Values.scheduling.suspend "true with scheduling.queue" "pods would start before the queue admits them" "Set scheduling.suspend to true; the queue lifts it") -}}
{{- end -}}
{{- if and (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) -}}
{{- include "paddle-training.fault" (list "serviceAccount.name" .Values.serviceAccount.name "given with serviceAccount.create false" "nothing makes an account of the release's name" "Name an account of this namespace, or set create to true") -}}
{{- end -}}
{{- end -}}
