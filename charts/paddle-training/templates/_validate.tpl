{{/*
Checks that the schema cannot express: rules between values, questions to the cluster, and required values. All faults
are reported in one message, one line for each: key, value, limit, reason, fix.
*/}}
{{- define "paddle-training.validate" -}}
{{- $faults := list -}}
{{- range list "names" "ports" "training" "elastic" "script" "gpus" "data" "storage" "pods" "patches" "network" "env" "cluster" -}}
{{- $found := include (printf "paddle-training.validate.%s" .) $ | trim -}}
{{- if $found -}}{{- $faults = concat $faults (splitList "\n" $found) -}}{{- end -}}
{{- end -}}
{{- with $faults -}}
{{- fail (printf "invalid values:\n- %s\n" (join "\n- " .)) -}}
{{- end -}}
{{- end -}}

{{/* Print one fault. Takes (list key value limit reason fix). */}}
{{- define "paddle-training.fault" -}}
{{- $text := printf "%s is %s, but must be %s: %s. Fix: %s." (index . 0) (index . 1 | toJson) (index . 2) (index . 3) (index . 4) -}}
{{- $text | replace "\n" " " }}
{{ end -}}

{{- define "paddle-training.validate.names" -}}
{{- include "paddle-training.validate.helmVersion" .Capabilities.HelmVersion.Version -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" .Release.Name) -}}
{{- include "paddle-training.fault" (list "the release's name" .Release.Name "a DNS label that begins with a letter" "the headless Service gets the same name" "Install under another name") -}}
{{- end -}}
{{- if not .Values.image -}}
{{- include "paddle-training.fault" (list "image" .Values.image "the name of an image" "there is no public image that could be the default" "Build launcher/Dockerfile, push it, and set image to its name, best with a digest") -}}
{{- end -}}
{{- range $key, $count := dict "gradientNum" (include "paddle-training.gradientNum" .) "data.splitCount" (include "paddle-training.splitCount" .) -}}
{{- $trainers := include "paddle-training.maxTrainers" $ -}}
{{- if ne $count $trainers -}}
{{- include "paddle-training.fault" (list $key (int64 $count) (printf "%s, the number of trainers" $trainers) "each trainer is one gradient server and reads one shard" (printf "Set %s to null or to the value of trainers" $key)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "paddle-training.validate.helmVersion" -}}
{{- if semverCompare "<3.14.0-0" . -}}
{{- include "paddle-training.fault" (list "helm" . "3.14 or newer" "older versions lack --reset-then-reuse-values, without which a manual upgrade mixes old and new values" "Install a newer helm") -}}
{{- end -}}
{{- end -}}

{{/* Ports: port … port+portsNum+portsNumSparse-1 and peerPort. */}}
{{- define "paddle-training.validate.ports" -}}
{{- $first := int64 .Values.port -}}
{{- $dense := include "paddle-training.portsNum" . | int64 -}}
{{- $sparse := include "paddle-training.portsNumSparse" . | int64 -}}
{{- $last := add $first $dense $sparse -1 -}}
{{- $peer := include "paddle-training.peerPort" . | int64 -}}
{{- $highest := max $last (ternary $peer 0 (kindIs "invalid" .Values.peerPort)) -}}
{{- if gt $highest 65535 -}}
{{- include "paddle-training.fault" (list "port" $first (printf "at most %d" (sub 65535 (sub $highest $first))) (printf "the ports are %d to %d (portsNum %d, portsNumSparse %d, peerPort), and TCP ports end at 65535" $first $highest $dense $sparse) "Set a lower port, or fewer ports") -}}
{{- end -}}
{{- if and (ge $peer $first) (le $peer $last) -}}
{{- include "paddle-training.fault" (list "peerPort" $peer (printf "outside %d to %d" $first $last) "the parameter servers use these ports" "Set peerPort to null or to another port") -}}
{{- end -}}
{{- if .Values.hostPorts -}}
{{- range $key, $range := dict "port" (list $first $last) "peerPort" (list $peer $peer) -}}
{{- range $taken := list (list 10250 10250 "the kubelet listens on it") (list 10256 10256 "kube-proxy listens on it") (list 30000 32767 "NodePort Services use these ports of every node") -}}
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
{{- include "paddle-training.fault" (list "training.config" $training.config (printf "in a folder with a name other than %s or a number" (join ", " $reserved)) "the job's shards, tables and outputs use these folders" "Give the program's folder another name") -}}
{{- end -}}
{{- $isScript := eq (include "paddle-training.isScript" .) "true" -}}
{{- $managed := $isScript | ternary list (list "port" "ports_num" "ports_num_for_sparse" "nics" "pservers" "trainer_id" "trainer_count" "num_gradient_servers" "num_passes" "log_period" "dot_period" "saving_period" "local" "use_gpu" "config" "save_dir" "start_pass" "init_model_path" "comment") -}}
{{- if and (not $isScript) (regexMatch "/.*/" $training.config) -}}
{{- include "paddle-training.fault" (list "training.config" $training.config (printf "FOLDER or FOLDER/FILE with runtime %s" .Values.runtime) "the program and the modules that it imports are in one folder" "Move the file to the top of its folder") -}}
{{- end -}}
{{- $seen := list -}}
{{- range $training.args -}}
{{- $flag := regexReplaceAll "(?s)^-*([^=]*)(=.*)?$" . "${1}" -}}
{{- if $isScript -}}
{{- $place := regexFind "\\{(train_file|test_file|tables_dir|data_dir)\\}" . -}}
{{- if and $place (ne (include "paddle-training.readsData" $) "true") -}}
{{- include "paddle-training.fault" (list "training.args" . (printf "without %s in a run without data" $place) "the launcher replaces it by a path of the data that it prepares" "Set data.source, or give the script the path of its own data") -}}
{{- else if and $place (ne (eq $place "{data_dir}") (eq $.Values.data.format "files")) -}}
{{- include "paddle-training.fault" (list "training.args" . (printf "without %s with data.format %s" $place $.Values.data.format) "files have {data_dir}, and rows {train_file}, {test_file} and {tables_dir}" "Use the other place, or set another data.format") -}}
{{- end -}}
{{- else if not (regexMatch "^--[A-Za-z][A-Za-z0-9_.-]*=" .) -}}
{{- include "paddle-training.fault" (list "training.args" . "--key=value" "the options of a program have this form; only a script of your own may have other arguments" "Write --key=value, or set runtime to collective or ps for a script") -}}
{{- else if has (replace "-" "_" $flag) $managed -}}
{{- include "paddle-training.fault" (list "training.args" . "a flag that no value of this chart sets" (printf "the launcher sets --%s, and this one would silently override it" $flag) "Remove it, and set the corresponding value of the chart") -}}
{{- else if has $flag $seen -}}
{{- include "paddle-training.fault" (list "training.args" . "given once" (printf "--%s is given twice, and only the last one would take effect" $flag) "Remove one of them") -}}
{{- end -}}
{{- $seen = append $seen $flag -}}
{{- if eq (include "paddle.isSecret" (list $flag (regexReplaceAll "(?s)^[^=]*=?" . ""))) "true" -}}
{{- include "paddle-training.fault" (list (printf "training.args --%s" $flag) "(not shown)" "an option without a secret" "values are plain text in the release and in its Jobs" "Put it into a Secret in this namespace, and read it in the program from a variable of extraEnv with valueFrom.secretKeyRef") -}}
{{- end -}}
{{- end -}}
{{- if and (eq .Values.runtime "v1") $training.checkpointEvery.batches -}}
{{- include "paddle-training.fault" (list "training.checkpointEvery.batches" $training.checkpointEvery.batches "unset with runtime v1" "paddle train resumes from complete passes only" "Remove it and use training.savingPeriod, which counts passes") -}}
{{- end -}}
{{- if and (eq .Values.runtime "v1") $training.packages -}}
{{- include "paddle-training.fault" (list "training.packages" $training.packages "empty with runtime v1" "paddle train is not started by the image's Python" "Remove it, and install the packages into your image") -}}
{{- end -}}
{{- if and $training.rankWaitHours $training.deadlineSeconds -}}
{{- $longest := divf (floor (divf (maxf 0 (subf $training.deadlineSeconds .Values.rendezvousSeconds)) 36)) 100 -}}
{{- if gt (float64 $training.rankWaitHours) $longest -}}
{{- include "paddle-training.fault" (list "training.rankWaitHours" $training.rankWaitHours (printf "at most %v" $longest) (printf "rendezvousSeconds (%d) and this wait must end before training.deadlineSeconds (%d), at which Kubernetes stops the Job" (int64 .Values.rendezvousSeconds) (int64 $training.deadlineSeconds)) "Set a shorter wait, or training.deadlineSeconds to a higher value or null") -}}
{{- end -}}
{{- end -}}
{{- if and $training.keepBest (eq .Values.runtime "v1") -}}
{{- include "paddle-training.fault" (list "training.keepBest" $training.keepBest "empty with runtime v1" "paddle train reports no test metric that the launcher could compare" "Set it to an empty text, or set runtime to fleet") -}}
{{- end -}}
{{- if and $training.patience (not $training.keepBest) (ne (include "paddle-training.isScript" .) "true") -}}
{{- include "paddle-training.fault" (list "training.patience" $training.patience "0 without training.keepBest" "it counts the passes that do not improve this metric" "Set training.keepBest to a test metric of the program, or training.patience to 0") -}}
{{- end -}}
{{- with $training.schedule -}}
{{- $items := list -}}
{{- range list "[0-5]?[0-9]" "([01]?[0-9]|2[0-3])" "(0?[1-9]|[12][0-9]|3[01])" "(0?[1-9]|1[0-2]|[A-Za-z]{3})" "([0-6]|[A-Za-z]{3})" -}}
{{- $item := printf `([*?]|%[1]s(-%[1]s)?)(/[1-9][0-9]*)?` . -}}
{{- $items = append $items (printf "%[1]s(,%[1]s)*" $item) -}}
{{- end -}}
{{- if not (regexMatch (printf "^(@(hourly|daily|midnight|weekly|monthly|yearly|annually)|%s)$" (join " +" $items)) .) -}}
{{- include "paddle-training.fault" (list "training.schedule" . "five fields in cron syntax (minute 0-59, hour 0-23, day 1-31, month 1-12, weekday 0-6), or @daily and the like" "the CronJob starts the runs at these times, in UTC" "Write, for example, \"0 2 * * *\" for 02:00 every night") -}}
{{- end -}}
{{- if not $.Values.data.enabled -}}
{{- include "paddle-training.fault" (list "training.schedule" . "empty with data.enabled false" "each run prepares its data itself, from what is at data.source at that time" "Set data.enabled to true, or training.schedule to an empty text") -}}
{{- end -}}
{{- end -}}
{{- with $training.initModelPath -}}
{{- $own := printf "%s/output" $.Values.jobName -}}
{{- if eq $.Values.runtime "v1" -}}
{{- include "paddle-training.fault" (list "training.initModelPath" . "empty with runtime v1" "paddle train starts with its own parameters" "Set it to an empty text, or set runtime to fleet") -}}
{{- else if hasPrefix (printf "%s/" $own) (printf "%s/" .) -}}
{{- include "paddle-training.fault" (list "training.initModelPath" . (printf "outside %s" $own) "this training writes to it: it resumes from its content, or moves it to runs/" (printf "Set it to a folder in %s/runs or of another job" $.Values.jobName)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Check the numbers of trainers of an elastic run. */}}
{{- define "paddle-training.validate.elastic" -}}
{{- $training := .Values.training -}}
{{- $trainers := .Values.trainers | int64 -}}
{{- $max := include "paddle-training.maxTrainers" . | int64 -}}
{{- if kindIs "invalid" $training.minTrainers -}}
{{- if not (kindIs "invalid" $training.maxTrainers) -}}
{{- include "paddle-training.fault" (list "training.maxTrainers" $max "null without training.minTrainers" "only an elastic run may have other numbers of trainers" "Set training.minTrainers, such as 1, or remove training.maxTrainers") -}}
{{- end -}}
{{- else -}}
{{- if gt (int64 $training.minTrainers) $trainers -}}
{{- include "paddle-training.fault" (list "training.minTrainers" (int64 $training.minTrainers) (printf "at most %d, the number of trainers" $trainers) "a run starts with all trainers, and goes on with fewer" "Lower training.minTrainers, or increase trainers") -}}
{{- end -}}
{{- if lt $max $trainers -}}
{{- include "paddle-training.fault" (list "training.maxTrainers" $max (printf "at least %d, the number of trainers" $trainers) "it is the largest number of trainers" "Increase training.maxTrainers, or lower trainers") -}}
{{- end -}}
{{- range $key, $found := dict
  "runtime" (list .Values.runtime "v1" "fleet, collective or ps" "paddle train of 2017 cannot continue with another number of trainers")
  "rendezvous" (list .Values.rendezvous "api" "lease" "any pod of an elastic run may coordinate it, and the others find this pod by the lease")
  "data.cache" (list .Values.data.cache "podShare" "storage or pod" "the share of a pod would change with the number of trainers") -}}
{{- if and (eq (index $found 0) (index $found 1)) (eq (include "paddle-training.isElastic" $) "true") -}}
{{- include "paddle-training.fault" (list $key (index $found 0) (printf "%s with training.minTrainers" (index $found 2)) (index $found 3) (printf "Set %s to %s, or training.minTrainers to null" $key (index $found 2))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Check the values of a script: those that only the other runtimes have keep their defaults. */}}
{{- define "paddle-training.validate.script" -}}
{{- $training := .Values.training -}}
{{- if and $training.servers (ne .Values.runtime "ps") -}}
{{- include "paddle-training.fault" (list "training.servers" $training.servers (printf "null with runtime %s" .Values.runtime) (ternary "this runtime has no parameter servers" "portsNum sets the number of its parameter servers in each pod" (eq .Values.runtime "collective")) "Set it to null, or set runtime to ps") -}}
{{- end -}}
{{- if ne (include "paddle-training.isScript" .) "true" -}}
{{- range $key := list "keepFiles" "checkpointDir" -}}
{{- with get $training $key -}}
{{- include "paddle-training.fault" (list (print "training." $key) (toJson .) (printf "empty with runtime %s" $.Values.runtime) "only a script of your own writes to a working folder" "Remove it, or set runtime to collective or ps") -}}
{{- end -}}
{{- end -}}
{{- with $training.processesPerPod -}}
{{- include "paddle-training.fault" (list "training.processesPerPod" . (printf "null with runtime %s" $.Values.runtime) "this runtime has one trainer in each pod (trainerCount sets the number of its threads)" "Set it to null, or set runtime to collective or ps") -}}
{{- end -}}
{{- else -}}
{{- $servers := ternary "training.servers is the number of parameter servers" "this runtime has no parameter servers" (eq .Values.runtime "ps") -}}
{{- $script := "the script itself decides it" -}}
{{- range $key, $found := dict
  "training.mode" (list $training.mode "async" (ternary $script $servers (eq .Values.runtime "ps")))
  "portsNum" (list .Values.portsNum 2 (printf "%s, and each process gets a port" $servers))
  "portsNumSparse" (list .Values.portsNumSparse 2 $servers)
  "training.initModelPath" (list $training.initModelPath "" $script)
  "training.keepBest" (list $training.keepBest "" $script)
  "training.patience" (list $training.patience 0 $script)
  "training.savingPeriod" (list $training.savingPeriod 1 $script)
  "training.logPeriod" (list $training.logPeriod 50 $script)
  "training.dotPeriod" (list $training.dotPeriod 10 $script)
  "trainerCount" (list .Values.trainerCount 1 "the number of threads is OMP_NUM_THREADS in extraEnv") -}}
{{- if ne (index $found 0 | toString) (index $found 1 | toString) -}}
{{- include "paddle-training.fault" (list $key (index $found 0) (printf "%s with runtime %s" (index $found 1 | toJson) $.Values.runtime) (index $found 2) (printf "Remove %s" $key)) -}}
{{- end -}}
{{- end -}}
{{- if or (not (regexMatch "^[^/]+/(.*\\.py|[A-Za-z_][A-Za-z0-9_]*(\\.[A-Za-z_][A-Za-z0-9_]*)*)$" $training.config)) (eq $training.config "quick_start/trainer_config.py") -}}
{{- include "paddle-training.fault" (list "training.config" $training.config (printf "FOLDER/SCRIPT.py or FOLDER/PACKAGE.MODULE with runtime %s" .Values.runtime) "the pods run this script, and the default is a program of runtime fleet" "Upload your folder with python -m launcher push, and set training.config to your script in it") -}}
{{- end -}}
{{- $gpus := include "paddle-training.gpus" . | int64 -}}
{{- if and $gpus (gt (include "paddle-training.processesPerPod" . | int64) $gpus) -}}
{{- include "paddle-training.fault" (list "training.processesPerPod" $training.processesPerPod (printf "at most %d, the GPUs of a pod" $gpus) "processes that share a GPU wait for each other" "Set it to null, or request more GPUs in resources") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Check the GPUs and the shared memory of a training pod. */}}
{{- define "paddle-training.validate.gpus" -}}
{{- range $gpu := include "paddle-training.gpuResources" . | fromJsonArray -}}
{{- $requested := index $.Values.resources.requests $gpu -}}
{{- $limit := index $.Values.resources.limits $gpu -}}
{{- if and (not (kindIs "invalid" $requested)) (ne (toString $requested) (toString $limit)) -}}
{{- include "paddle-training.fault" (list (print "resources.requests." $gpu) $requested (printf "equal to resources.limits.%s, or absent" $gpu) (printf "Kubernetes rejects pods whose request of GPUs differs from the limit, which is %s" ($limit | default "not set" | toString)) (printf "Set %s in resources.limits, and remove it from resources.requests" $gpu)) -}}
{{- end -}}
{{- if not (regexMatch "^[0-9]*$" ($limit | default "" | toString)) -}}
{{- include "paddle-training.fault" (list (print "resources.limits." $gpu) $limit "a number of GPUs without decimals" "Kubernetes assigns only complete devices" "Set it to 1 or more") -}}
{{- end -}}
{{- if and (ne (include "paddle-training.gpus" $) "0") (ne $.Values.runtime "collective") -}}
{{- include "paddle-training.fault" (list (print "resources.limits." $gpu) $limit (printf "absent with runtime %s" $.Values.runtime) "its trainers and parameter servers use CPUs only, and the GPUs would be idle" "Remove it, or set runtime to collective") -}}
{{- end -}}
{{- end -}}
{{- with .Values.training.sharedMemory -}}
{{- $memory := $.Values.resources.limits.memory -}}
{{- if gt (include "paddle-training.bytes" . | float64) (include "paddle-training.bytes" $memory | float64) -}}
{{- include "paddle-training.fault" (list "training.sharedMemory" . (printf "at most %s, the value of resources.limits.memory" (toString $memory)) "files in /dev/shm count against this limit, and the processes need memory too" "Increase resources.requests.memory and resources.limits.memory, or lower training.sharedMemory") -}}
{{- end -}}
{{- range $.Values.extraVolumeMounts -}}
{{- if eq (trimSuffix "/" .mountPath) "/dev/shm" -}}
{{- include "paddle-training.fault" (list "training.sharedMemory" $.Values.training.sharedMemory "empty with /dev/shm in extraVolumeMounts" "two volumes cannot be mounted on one folder" "Remove the mount from extraVolumeMounts, and its volume from extraVolumes") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if eq (include "paddle-training.ownSharedMemory" .) "true" -}}
{{- range .Values.extraVolumes -}}
{{- if eq .name "shared-memory" -}}
{{- include "paddle-training.fault" (list "extraVolumes" .name "a name other than shared-memory" "the volume of /dev/shm has this name" "Give the volume another name") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Check the source of the data and how it is split. */}}
{{- define "paddle-training.validate.data" -}}
{{- if eq (include "paddle-training.readsData" .) "true" -}}
{{- $data := .Values.data -}}
{{- $source := $data.source -}}
{{- if and (eq .Values.runtime "fleet") (not $data.testSource) (eq (float64 $data.testFraction) 0.0) -}}
{{- include "paddle-training.fault" (list "data.testFraction" $data.testFraction "more than 0 with runtime fleet" "each pass and the exported model are tested on rows that no trainer has seen" "Set it to for example 0.1, or give your own test set in data.testSource") -}}
{{- end -}}
{{- range $key, $url := dict "data.source" $source "data.testSource" $data.testSource -}}
{{- if regexMatch "^https?://[^/]*@" $url -}}
{{- include "paddle-training.fault" (list $key "(not shown)" "a URL without user name and password" "values are plain text in the release and in its Jobs" "Put the address without them into data.source, or use a bucket with pod identity or keys in a Secret (extraEnv)") -}}
{{- else if eq (include "paddle.hasSecret" $url) "true" -}}
{{- include "paddle-training.fault" (list $key "(not shown)" "an address without signature and token" "values are plain text in the release and in its Jobs" (eq $key "data.source" | ternary "Put the address into a Secret in this namespace, and set data.sourceSecret.name and .key to it, and data.sha256 to the sha256 of the data" "Copy the file to the folder sources/ of the shared storage or to a bucket, or use data.testFraction")) -}}
{{- end -}}
{{- end -}}
{{- $secret := $data.sourceSecret.name -}}
{{- if and $secret $source -}}
{{- include "paddle-training.fault" (list "data.source" $source "empty with data.sourceSecret.name" "the data has one address" "Remove one of them") -}}
{{- else if and $secret (not $data.sha256) -}}
{{- include "paddle-training.fault" (list "data.sha256" $data.sha256 "given with data.sourceSecret.name" "the address is unknown here and changes with each signature, so only the sha256 identifies the data" "Set data.sha256 to the output of sha256sum") -}}
{{- else if not (or $source $secret) -}}
{{- include "paddle-training.fault" (list "data.source" $source "https://…, http://…, s3://BUCKET/PREFIX or file://NAME" "it specifies the training data, also for data that exists already (data.enabled: false)" "Set data.source; a file in the folder sources/ of the shared storage is file://NAME") -}}
{{- else if and (hasPrefix "http://" $source) (not $data.sha256) -}}
{{- include "paddle-training.fault" (list "data.sha256" $data.sha256 "given with an http source" "the content could be changed in transit" "Set data.sha256 to the output of sha256sum, or use https") -}}
{{- else if and (hasPrefix "s3://" $source) $data.member (not (regexMatch "^s3://[^/]+/.*[^/]$" $source)) -}}
{{- include "paddle-training.fault" (list "data.source" $source "s3://BUCKET/KEY of one archive, since data.member is set" "a member is in exactly one object, and this is a prefix" "Set data.source to the archive, or data.member to an empty text to read all text below the prefix") -}}
{{- end -}}
{{- if and (eq (include "paddle-training.dataPreparedBy" .) "trainingPods") (ne (int64 $data.workers) 1) -}}
{{- include "paddle-training.fault" (list "data.workers" (int64 $data.workers) "1 with data.preparedBy trainingPods, and with training.schedule" "there is no data Job whose pods it could count: every training pod prepares data" "Remove data.workers") -}}
{{- end -}}
{{- $names := list -}}
{{- range $data.tables -}}
{{- if has (base .) $names -}}
{{- include "paddle-training.fault" (list "data.tables" . "of a file name that no other table has" "all tables are copied to one folder" "Remove one of them") -}}
{{- end -}}
{{- $names = append $names (base .) -}}
{{- end -}}
{{- if and $data.tables (or (not $data.member) (has $data.member $data.tables)) -}}
{{- include "paddle-training.fault" (list "data.tables" $data.tables "a list of members of the archive other than data.member, which must be set" "tables are further members of an archive" "Set data.member to the path of the text, and data.tables to the other members") -}}
{{- end -}}
{{- if and (eq $data.format "parquet") (or $data.member (eq .Values.runtime "v1")) -}}
{{- include "paddle-training.fault" (list "data.format" $data.format (ternary "lines or csv with data.member" "lines or csv with runtime v1" (ne .Values.runtime "v1")) "archives of Parquet files are not read, and the engine of 2017 reads text" "Unpack the archive into a folder, or set data.format to csv") -}}
{{- end -}}
{{- if eq $data.format "files" -}}
{{- if ne (include "paddle-training.isScript" .) "true" -}}
{{- include "paddle-training.fault" (list "data.format" "files" (printf "%s with runtime %s" (ternary "lines or csv" "lines, parquet or csv" (eq .Values.runtime "v1")) .Values.runtime) "its programs read rows, and only a script of your own can read files" "Set another data.format, or runtime to collective or ps for a script") -}}
{{- end -}}
{{- range $key := list "member" "tables" "columns" "testSource" -}}
{{- with index $data $key -}}
{{- include "paddle-training.fault" (list (printf "data.%s" $key) . "empty with data.format files" "all files of the source are the data, and an archive is unpacked as a whole" "Remove it; the script chooses the files that it needs below {data_dir}") -}}
{{- end -}}
{{- end -}}
{{- else if ne $data.cache "storage" -}}
{{- include "paddle-training.fault" (list "data.cache" $data.cache (printf "storage with data.format %s" $data.format) "each pod copies its rows to its own disk anyway" "Remove it, or set data.format to files") -}}
{{- end -}}
{{- if and (eq $data.format "lines") $data.columns -}}
{{- include "paddle-training.fault" (list "data.columns" $data.columns "empty with data.format lines" "lines are passed on byte for byte, without selecting columns" "Set data.format to csv, or data.columns to []") -}}
{{- else if and (eq $data.format "csv") (not $data.header) (regexMatch "\"" (toJson $data.columns)) -}}
{{- include "paddle-training.fault" (list "data.columns" $data.columns "indexes from 0 with data.header false" "without a header the columns have no names" "Use the columns' indexes, or set data.header to true") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Check that the type of storage has its values, and that no path leads out of its folder. */}}
{{- define "paddle-training.validate.storage" -}}
{{- $storage := .Values.storage -}}
{{- range $type, $need := dict
  "efs-csi" (list "efsCsi.fileSystemId" (dig "efsCsi" "fileSystemId" "" $storage) "the id of an EFS file system, fs-…" "Set it to the id that aws efs describe-file-systems shows, or set another storage.type")
  "nfs" (list "nfs.server" (dig "nfs" "server" "" $storage) "the name or address of a server" "Set it to a name that the nodes can resolve, such as that of an EFS mount target")
  "hostPath" (list "hostPath.path" (dig "hostPath" "path" "" $storage) "an absolute path below /" "Set it to a folder that exists on every node")
  "existingClaim" (list "existingClaim.name" (dig "existingClaim" "name" "" $storage) "the name of a claim" "Set it to a claim in this namespace with access mode ReadWriteMany") -}}
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
{{- include "paddle-training.fault" (list $key . "a path without '..'" "it could lead out of its folder" "Write the path without '..'") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $key, $paths := dict "jobPath" (list .Values.jobPath) "extraVolumeMounts" $mounts -}}
{{- $taken := ternary (list "/work" "/tmp" "/etc/paddle-training") (list "/work" "/tmp" "/etc/paddle-training" $.Values.jobPath) (eq $key "jobPath") -}}
{{- range $path := $paths -}}
{{- range $taken -}}
{{- if hasPrefix (printf "%s/" .) (printf "%s/" $path) -}}
{{- include "paddle-training.fault" (list $key $path (printf "outside %s" .) "the pods use this folder" "Set another mount path") -}}
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
{{- include "paddle-training.fault" (list (printf "%s.limits.memory" $key) $limit (printf "equal to %s.requests.memory, which is %q" $key $request) "a pod that uses more memory than it requests is killed first when a node runs out of memory" "Set both to the same text") -}}
{{- end -}}
{{- end -}}
{{- range $key, $resources := dict "resources" (include "paddle-training.trainingResources" . | fromYaml).resources "data.resources" .Values.data.resources -}}
{{- range $name := list "cpu" "ephemeral-storage" -}}
{{- $request := index $resources.requests $name -}}
{{- $limit := index $resources.limits $name -}}
{{- if and $request $limit -}}
{{- if gt (include "paddle-training.bytes" $request | float64) (include "paddle-training.bytes" $limit | float64) -}}
{{- include "paddle-training.fault" (list (printf "%s.requests.%s" $key $name) $request (printf "at most %v, the limit" $limit) "Kubernetes rejects pods that request more than their limit" (printf "Set a lower request or a higher limit%s" (ternary "; without a limit, workDir.sizeLimit applies to training pods" "" (eq $name "ephemeral-storage")))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $key, $_ := include "paddle-training.selectorLabels" (dict "root" . "component" "training") | fromYaml -}}
{{- if hasKey $.Values.podLabels $key -}}
{{- include "paddle-training.fault" (list "podLabels" $key "a label that the chart does not set" "Services, policies and the command line select pods by it" "Use another label") -}}
{{- end -}}
{{- end -}}
{{- if hasKey .Values.podAnnotations "paddle-training/settings" -}}
{{- include "paddle-training.fault" (list "podAnnotations" "paddle-training/settings" "an annotation that the chart does not set" "the launcher reads its settings from it" "Use another annotation") -}}
{{- end -}}
{{- range .Values.extraVolumes -}}
{{- if has .name (list "jobpath" "settings" "work" "tmp") -}}
{{- include "paddle-training.fault" (list "extraVolumes" .name "a name other than jobpath, settings, work and tmp" "the pods have volumes of these names" "Give the volume another name") -}}
{{- end -}}
{{- end -}}
{{- if and .Values.monitoring.podMonitor.enabled .Values.networkPolicy.enabled (not .Values.networkPolicy.metricsFrom) -}}
{{- include "paddle-training.fault" (list "networkPolicy.metricsFrom" .Values.networkPolicy.metricsFrom "given with monitoring.podMonitor.enabled" "the NetworkPolicy would reject Prometheus" "Set it to Prometheus' pods, such as [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]") -}}
{{- end -}}
{{- if not (or .Values.serviceAccount.create .Values.serviceAccount.name) -}}
{{- include "paddle-training.fault" (list "serviceAccount.name" .Values.serviceAccount.name "given with serviceAccount.create false" "the chart creates no service account then" "Set it to a service account in this namespace, or set serviceAccount.create to true") -}}
{{- end -}}
{{- end -}}

{{/* Check that no network consists of nothing but the metadata service. */}}
{{- define "paddle-training.validate.network" -}}
{{- range $key := list "sourceCidrs" "apiServerCidrs" -}}
{{- range index $.Values.networkPolicy $key -}}
{{- if or (regexMatch "^169\\.254\\.169\\.254/32$" .) (and (hasSuffix "/128" .) (include "paddle.metadataIn" .)) -}}
{{- include "paddle-training.fault" (list (printf "networkPolicy.%s" $key) . "a network that does not consist of the nodes' metadata service" "it returns the credentials of the node's role, so pods must not reach it" "Remove this network; pods get AWS credentials by pod identity") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Variables that describe the distribution of a script: those that the launcher sets (launcher/runtimes/collective.py,
     rank_variables), and FOREIGN_VARIABLES there, which it does not pass on. */}}
{{- define "paddle-training.distributionVariables" -}}
{{- regexReplaceAll "\\s+" `DISTRIBUTED_TRAINER_ENDPOINTS FLAGS_selected_cpus FLAGS_selected_devices FLAGS_selected_gpus FLAGS_selected_ipus
FLAGS_selected_mlus FLAGS_selected_npus FLAGS_selected_xpus GROUP_RANK GROUP_WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE
MASTER_ADDR MASTER_PORT PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST PADDLE_BACKUP_ENV_PATH PADDLE_COORDINATOR_ENDPOINTS
PADDLE_CURRENT_ENDPOINT PADDLE_GLOBAL_RANK PADDLE_GLOBAL_SIZE PADDLE_GLOO_FS_PATH PADDLE_GLOO_HTTP_ENDPOINT
PADDLE_GLOO_RENDEZVOUS PADDLE_HETER_TRAINER_IP_PORT_LIST PADDLE_LOCAL_DEVICE_IDS PADDLE_LOCAL_RANK PADDLE_LOCAL_SIZE
PADDLE_MASTER PADDLE_MASTER_ENDPOINT PADDLE_NEXT_HETER_TRAINER_IP_PORT_LIST PADDLE_NNODES PADDLE_PORT
PADDLE_PREVIOUS_HETER_TRAINER_IP_PORT_LIST PADDLE_PSERVERS_IP_PORT_LIST PADDLE_PSERVER_ENDPOINTS PADDLE_PSERVER_ID
PADDLE_PSERVER_NUMS PADDLE_RANK PADDLE_RANK_IN_NODE PADDLE_ROLE PADDLE_STAGE_TRAINERS_NUM PADDLE_TRAINERS
PADDLE_TRAINERS_NUM PADDLE_TRAINER_ENDPOINTS PADDLE_TRAINER_ID PADDLE_TRAINING_ROLE PADDLE_WITH_GLOO
PADDLE_WORKER_ENDPOINT PADDLE_WORLD_DEVICE_IDS RANK ROLE_NAME ROLE_RANK ROLE_WORLD_SIZE TORCHELASTIC_MAX_RESTARTS
TORCHELASTIC_RESTART_COUNT TORCHELASTIC_RUN_ID TORCHELASTIC_USE_AGENT_STORE TRAINING_ROLE WORLD_SIZE` " " -}}
{{- end -}}

{{/* Check podSpecPatch and data.podSpecPatch: fields without which the pods do not work. */}}
{{- define "paddle-training.validate.patches" -}}
{{- range $key, $patch := dict "podSpecPatch" .Values.podSpecPatch "data.podSpecPatch" .Values.data.podSpecPatch -}}
{{- range $field, $fix := dict "containers" "Use resources, extraEnv and extraVolumeMounts" "initContainers" "Remove it" "volumes" "Use extraVolumes and extraVolumeMounts" "restartPolicy" "Remove it" "subdomain" "Remove it" "terminationGracePeriodSeconds" "Remove it; training.terminationGracePeriodSeconds sets that of the training pods" -}}
{{- if hasKey $patch $field -}}
{{- include "paddle-training.fault" (list (printf "%s.%s" $key $field) (index $patch $field) "absent" "a merge patch replaces this field as a whole, and the chart's own one is needed" $fix) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Check extraEnv: no name that something else sets, no duplicate, no secret in plain text. */}}
{{- define "paddle-training.validate.env" -}}
{{- $managed := list "TRAIN_CONFIG_DIR" "TRAINER_COUNT" "TRAINING_ROLE" "OUT_DIR" "SPLIT_COUNT" "POD_IP" "HOME" "PATH" "PYTHONPATH" -}}
{{- if eq .Values.runtime "fleet" -}}
{{- $managed = concat $managed (list "OMP_NUM_THREADS" "MKL_NUM_THREADS" "OPENBLAS_NUM_THREADS") -}}
{{- else if eq (include "paddle-training.isScript" .) "true" -}}
{{- $managed = concat $managed (include "paddle-training.distributionVariables" . | splitList " ") -}}
{{- $managed = without $managed "PYTHONPATH" -}}
{{- end -}}
{{- $prefixes := eq (include "paddle-training.isScript" .) "true" | ternary "JOB|PADDLE_LAUNCHER|CONF_PADDLE|KUBERNETES" "JOB|PADDLE|CONF_PADDLE|KUBERNETES" -}}
{{- $seen := list -}}
{{- range .Values.extraEnv -}}
{{- $key := printf "extraEnv %s" .name -}}
{{- if or (has .name $managed) (regexMatch (printf "^(%s)_" $prefixes) .name) -}}
{{- include "paddle-training.fault" (list "extraEnv" .name "a name that neither this chart nor the image sets" "of two variables with one name the second silently overrides the first" "Remove it, and set the corresponding value of the chart, if there is one") -}}
{{- else if has .name $seen -}}
{{- include "paddle-training.fault" (list "extraEnv" .name "given once" "of two variables with one name only the last one takes effect" "Remove one of them") -}}
{{- end -}}
{{- $seen = append $seen .name -}}
{{- if eq (hasKey . "value") (hasKey . "valueFrom") -}}
{{- include "paddle-training.fault" (list $key (ternary "value and valueFrom" "" (hasKey . "value")) "either value or valueFrom" "a variable has one value" "Set exactly one of them") -}}
{{- else if and (hasKey . "value") (eq (include "paddle.isSecret" (list .name .value)) "true") -}}
{{- include "paddle-training.fault" (list $key "(not shown)" "given by valueFrom.secretKeyRef" "it contains a secret, and values are plain text in the release and in its Jobs" "Put it into a Secret in this namespace and refer to that") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Check values against the cluster. Without a cluster (helm template) lookups are empty and every check passes. */}}
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
{{- include "paddle-training.fault" (list "storage.existingClaim.name" (index . 0) "a claim with access mode ReadWriteMany" (printf "pods on several nodes write to it, and this claim has %s" (join ", " (index . 1))) "Use a claim with this access mode on shared storage, such as EFS or NFS") -}}
{{- end -}}
{{- end -}}

{{- define "paddle-training.validate.podSecurity" -}}
{{- if has (index . 1) (list "baseline" "restricted") -}}
{{- include "paddle-training.fault" (list "hostPorts" true (printf "false in namespace %s" (index . 0)) (printf "its Pod Security level is %s, which rejects pods with host ports" (index . 1)) (printf "Set hostPorts to false, or: kubectl label namespace %s pod-security.kubernetes.io/enforce=privileged --overwrite" (index . 0))) -}}
{{- end -}}
{{- end -}}

{{- define "paddle-training.validate.released" -}}
{{- if eq (dig "status" "phase" "" (. | default dict)) "Released" -}}
{{- include "paddle-training.fault" (list "storage" .metadata.name "a volume without an earlier claim" "its claim was deleted, and Kubernetes does not bind it to another one" (printf "Run kubectl delete pv %s (the files on the storage stay), and try again" .metadata.name)) -}}
{{- end -}}
{{- end -}}
